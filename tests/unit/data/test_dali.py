"""DALI loaders use the common sample order and survive files that stop DALI pipelines."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import sample_datasets
import torch
from colours import levels_off
from open_loaders import CPU, NO_DALI, config, opened, shard, take
from PIL import Image
from polling import wait_until

from ddpbench.data.datasets import image_folder
from ddpbench.data.loaders.dali.gpu import gpu_graph
from ddpbench.data.loaders.dali.graph import EncodedPath
from ddpbench.data.loaders.dali.pipeline_pool import FileFeeder, RoundRobin, weighted_round_robin
from ddpbench.data.loaders.dali.stage_costs import measure_stage_cpu_s
from ddpbench.data.loaders.open import open_host_loader
from ddpbench.data.sampler import DistributedBatchSampler
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.loaders import LOADERS

CLASSES = 13

Damage = Callable[[Path], object]


def as_gif(file: Path) -> None:
    """A GIF, which PIL decodes under any suffix and DALI does not."""
    Image.open(file).save(file, "GIF")


DAMAGES: dict[str, tuple[Damage, str]] = {
    "empty": (lambda file: file.write_bytes(b""), "it is empty"),
    "no image": (lambda file: file.write_bytes(b"hello" * 100), "not an image"),
    "truncated": (sample_datasets.truncate, "(?i)truncated"),
    "gone": (lambda file: file.unlink(), "No such file"),
    "gif": (as_gif, "DALI cannot decode"),
}

ODD: dict[str, Damage] = {
    "greyscale": lambda file: Image.open(file).convert("L").save(file, "JPEG"),
    "cmyk": lambda file: Image.open(file).convert("CMYK").save(file, "JPEG"),
    "progressive": lambda file: Image.open(file).save(file, "JPEG", progressive=True),
    "png under the name of a jpeg": lambda file: Image.open(file).save(file, "PNG"),
    "transparent png": lambda file: Image.open(file).convert("RGBA").save(file, "PNG"),
    "bytes behind its end": lambda file: file.write_bytes(file.read_bytes() + b"hello" * 20),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Single-colour images, one distinct colour per label."""
    return sample_datasets.image_tree(tmp_path, classes=CLASSES, images=1, texture=0)


def file_of(tree: Path, label: int) -> Path:
    return Path(image_folder.read_index(str(tree)).files[label])


def labels_of(names: list[EncodedPath]) -> list[int]:
    """Labels of encoded paths, which are numbers."""
    return [int(bytes(name)) for name in names]


def dali_threads(kind: str = "[DALI]") -> list[str]:
    """Names of this process's threads that start with ``kind``."""
    names = [thread_name(task) for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if name.startswith(kind)]


def thread_name(task: Path) -> str:
    """Name of a thread; empty if it has ended since it was listed."""
    try:
        return (task / "comm").read_text().strip()
    except OSError:
        return ""


def threads_ended() -> bool:
    """Whether all DALI threads have ended; the kernel may list joined threads for a moment."""
    return wait_until(lambda: not dali_threads(), 5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Constructor arguments of every DALI pipeline."""
    import nvidia.dali

    asked = []

    class Noted(nvidia.dali.Pipeline):  # type: ignore[misc]
        def __init__(self, **how: Any) -> None:
            asked.append(how)
            super().__init__(**how)

    monkeypatch.setattr(nvidia.dali, "Pipeline", Noted)
    return asked


@NO_DALI
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("threads", [0, 7, 11])
def test_sample_order_matches_torch_loader(threads: int, shuffle: bool, tree: Path) -> None:
    for rank in range(2):
        drawn = []
        for loader, workers in (("torch", 0), ("dali-cpu", threads)):
            settled = config(loader, tree, workers=workers, batch_size=3, shuffle=shuffle)
            with opened(settled, rank=rank, world_size=2) as live:
                drawn.append(take(live, 12)[1].tolist())
        assert drawn[0] == drawn[1]


@NO_DALI
@pytest.mark.parametrize("channels_last", [True, False])
def test_center_crop_matches_pil(channels_last: bool, tmp_path: Path) -> None:
    tree = sample_datasets.image_tree(tmp_path, grain=5)
    looks = []
    for loader in ("torch", "dali-cpu"):
        settled = config(loader, tree, workers=0, batch_size=16, augment=False, image_size=42, channels_last=channels_last)
        with opened(settled) as live:
            looks.append(take(live, 1)[0])
    assert (looks[0] - looks[1]).abs().mean() < 0.03, "less than two of 255 levels"


@NO_DALI
def test_thread_count_is_as_requested_and_threads_end_on_close(tree: Path) -> None:
    for workers, pipelines in ((1, 1), (3, 1), (7, 2)):
        with opened(config("dali-cpu", tree, workers=workers)) as live:
            take(live, 2)
            assert len(dali_threads("[DALI][TP")) == workers
            assert (live.worker_pids(), live.max_prefetched) == ([], 2 * pipelines)
        assert threads_ended()


@NO_DALI
def test_each_pipeline_has_its_own_augmentation_seed(asked: list[dict[str, Any]], tree: Path) -> None:
    for rank in range(2):
        with opened(config("dali-cpu", tree, workers=15), rank=rank, world_size=2):
            pass
    assert [how["num_threads"] for how in asked] == [5] * 6
    assert len({how["seed"] for how in asked}) == 6


@NO_DALI
def test_dali_loader_can_be_read_from_another_thread(tree: Path) -> None:
    with opened(config("dali-cpu", tree, batch_size=CLASSES)) as live:
        taken: list[list[int]] = []
        reader = threading.Thread(target=lambda: taken.append(take(live, 1)[1].tolist()))
        reader.start()
        reader.join(30)
    assert sorted(taken[0]) == list(range(CLASSES))


@NO_DALI
@pytest.mark.parametrize("damage", DAMAGES)
def test_file_that_stops_a_pipeline_is_named(damage: str, tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make, why = DAMAGES[damage]
    damaged = file_of(tree, 7)
    with opened(config("dali-cpu", tree)) as live:
        make(damaged)
        with pytest.raises(BenchError, match=why) as error:
            take(live, 3 * CLASSES)
    assert str(damaged) in error.value.message
    assert "\n" not in error.value.message
    assert threads_ended(), "also those of stopped pipelines"


@NO_DALI
def test_bad_files_are_skipped_up_to_the_limit(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for label, (make, _) in enumerate(islice(DAMAGES.values(), 3), start=4):
        make(file_of(tree, label))
    good = set(range(CLASSES)) - {4, 5, 6}
    for workers, prefetch in ((2, 1), (2, 4), (7, 1), (11, 2)):
        with opened(config("dali-cpu", tree, batch_size=5, workers=workers, prefetch=prefetch, skip_bad=3)) as live:
            drawn = Counter(take(live, 8)[1].tolist())  # four epochs of 10 images
            assert drawn == Counter(dict.fromkeys(good, 4)), "each good file equally often"
            stats = live.pop_stats()
            assert stats
            assert (stats.samples, len(stats.skipped_files)) == (40, 3), "a file is skipped once, and every batch is full"
        assert threads_ended(), "no threads of stopped pipelines are left"
        notes = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ddpbench: note: skipped: ")]
        assert len(notes) == 3
        assert all(any(str(file_of(tree, label)) in note for note in notes) for label in (4, 5, 6)), "each is reported once"
    with opened(config("dali-cpu", tree, batch_size=5, skip_bad=2)) as live, pytest.raises(BenchError) as told_of:
        take(live, 8)
    assert told_of.value.message.startswith("cannot read the image")
    assert told_of.value.message.endswith(", after 2 others skipped")


@NO_DALI
@pytest.mark.parametrize(("shuffle", "ranks", "damaged"), [(True, 1, range(CLASSES)), (False, CLASSES, [3])])
def test_rank_without_readable_files_fails_instead_of_hanging(
    shuffle: bool, ranks: int, damaged: list[int], tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for label in damaged:
        file_of(tree, label).write_bytes(b"")
    settled = config("dali-cpu", tree, batch_size=1, shuffle=shuffle, skip_bad=100)
    with opened(settled, rank=3 % ranks, world_size=ranks) as live, pytest.raises(BenchError, match=r"cannot read .*: it is empty"):
        take(live, 1)


@NO_DALI
def test_file_that_stops_a_later_pipeline_is_skipped_in_place(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file_of(tree, 4).write_bytes(b"")
    settled = config("dali-cpu", tree, batch_size=3, workers=6, augment=False, shuffle=False, skip_bad=1)
    host = open_host_loader(settled, shard())
    try:
        batches = [host.next_batch() for _ in range(8)]
    finally:
        host.close()
    on_their_way = [[0, 1, 2], [3, 2, 5], [6, 7, 8], [9, 10, 11], [12, 0, 1]]  # two per pipeline, and the next of the first
    assert [batch.labels.tolist() for batch in batches] == [*on_their_way, [3, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert all(levels_off(host.device_transform(batch.samples), batch.labels) < 4 for batch in batches)
    assert [len(batch.worker_timing.skipped_files) for batch in batches if batch.worker_timing] == [0, 1, 0, 0, 0, 0, 0, 0]


@NO_DALI
def test_dynamic_executor_is_requested(asked: list[dict[str, Any]], tree: Path) -> None:
    with opened(config("dali-cpu", tree)) as live:
        take(live, 1)
    assert [how.get("exec_dynamic") for how in asked] == [True]


@NO_DALI
def test_labels_match_images_after_pipelines_restart(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sample_datasets.truncate(file_of(tree, 3))
    with opened(config("dali-cpu", tree, batch_size=4, augment=False, skip_bad=1)) as live:
        images, labels = take(live, 9)
    assert levels_off(images, labels) < 4


@NO_DALI
@pytest.mark.parametrize("odd", ODD)
def test_unusual_image_formats_are_decoded(odd: str, tree: Path) -> None:
    ODD[odd](file_of(tree, 3))
    with opened(config("dali-cpu", tree, batch_size=CLASSES)) as live:
        images, labels = take(live, 2)
        stats = live.pop_stats()
    assert sorted(labels.tolist()) == sorted([*range(CLASSES), *range(CLASSES)])
    assert images.isfinite().all()
    assert stats
    assert stats.skipped_files == []


@NO_DALI
def test_batch_stats_are_reported_once(tree: Path) -> None:
    with opened(config("dali-cpu", tree, batch_size=4)) as live:
        take(live, 3)
        stats = live.pop_stats()
        assert stats
        assert (stats.samples, len(stats.batch_ms), stats.cpu_s, stats.wall_s) == (12, 3, {}, {})
        assert live.pop_stats() is None


@NO_DALI
@pytest.mark.parametrize("augment", [True, False])
def test_every_dali_stage_has_a_cpu_cost(augment: bool, tmp_path: Path) -> None:
    tree = sample_datasets.image_tree(tmp_path)
    costs = measure_stage_cpu_s(config("dali-cpu", tree, batch_size=8, augment=augment), CPU, seconds=0.2)
    assert list(costs) == ["read", "decode", "augment"]
    assert sum(costs.values()) > 0
    assert min(costs.values()) >= 0
    assert threads_ended()


@NO_DALI
def test_stage_costs_use_the_threads_of_one_pipeline(asked: list[dict[str, Any]], tree: Path) -> None:
    measure_stage_cpu_s(config("dali-cpu", tree, batch_size=4, workers=12), CPU, seconds=0.1)
    assert [how["num_threads"] for how in asked] == [4, 4, 4]


def test_stage_costs_skip_damaged_files_of_all_ranks(tmp_path: Path) -> None:
    """Each rank may skip one file, and a single reader encounters all of them."""
    tree = sample_datasets.image_tree(tmp_path)
    for file in sorted(tree.rglob("*.JPEG"))[:2]:
        file.write_bytes(b"")
    costs = measure_stage_cpu_s(config("dali-cpu", tree, batch_size=8, skip_bad=1, shuffle=False), CPU, seconds=0.1)
    assert sum(costs.values()) > 0


@pytest.mark.parametrize(
    ("threads", "teams"), [(0, [1]), (1, [1]), (4, [4]), (5, [5]), (6, [3, 3]), (8, [4, 4]), (11, [4, 4, 3]), (15, [5, 5, 5])]
)
def test_dali_threads_are_distributed_evenly_over_pipelines(threads: int, teams: list[int]) -> None:
    assert LOADERS["dali-cpu"].thread_group_sizes(threads) == teams
    assert LOADERS["dali-gpu"].thread_group_sizes(threads) == [max(1, threads)], "the GPU does the work"


class TestTurns:
    @pytest.mark.parametrize(("threads", "turns"), [([5], [0, 0, 0]), ([5, 5, 5], [0, 1, 2, 0, 1, 2]), ([2, 1], [0, 0, 1, 0, 0, 1])])
    def test_turns_are_proportional_to_threads(self, threads: list[int], turns: list[int]) -> None:
        assert list(islice(weighted_round_robin(threads), len(turns))) == turns

    def test_pipelines_run_concurrently_and_one_at_a_time_is_awaited(self) -> None:
        said: list[str] = []

        class Pipeline:
            def __init__(self, name: str) -> None:
                self.name = name

            def schedule_run(self) -> None:
                said.append(f"{self.name} goes on")

            def outputs(self) -> tuple[str]:
                said.append(f"{self.name} is waited for")
                return (self.name,)

        turns = RoundRobin([Pipeline("a"), Pipeline("b")], [1, 1])
        (a, first), (b, second), (again, third) = (turns.next_output() for _ in range(3))
        assert [a, b, again] == ["a", "b", "a"]
        begins = ["a goes on", "b goes on", "a is waited for"]
        assert said == [*begins, "a goes on", "b is waited for", "b goes on", "a is waited for"]
        assert second.start_s < first.end_s == third.start_s, "a batch starts when the previous batch of its pipeline ends"


class TestFeed:
    """Paths are numbers; batches have three of eight files."""

    @staticmethod
    def feed() -> tuple[FileFeeder, Iterator[list[EncodedPath]]]:
        feed = FileFeeder([str(number) for number in range(8)], DistributedBatchSampler(8, 3, rank=0, world_size=1, seed=0, shuffle=False))
        return feed, feed.encoded_paths(count())

    def test_batches_return_in_the_order_of_their_paths(self) -> None:
        feed, names = self.feed()
        asked = [labels_of(next(names)) for _ in range(3)]
        assert asked == feed.pending_batches() == [[0, 1, 2], [3, 4, 5], [6, 7, 0]]
        assert [feed.pop_batch(), feed.pop_batch()] == asked[:2]
        assert feed.pending_batches() == asked[2:]

    def test_each_pipeline_has_fixed_positions_in_the_order(self) -> None:
        feed, _ = self.feed()
        even, odd = feed.encoded_paths(count(0, 2)), feed.encoded_paths(count(1, 2))
        assert [labels_of(next(odd)) for _ in range(2)] == [[3, 4, 5], [1, 2, 3]]
        assert labels_of(next(even)) == feed.pop_batch() == [0, 1, 2]
        assert labels_of(next(even)) == [6, 7, 0]
        assert labels_of(next(feed.encoded_paths([0]))) == [3, 4, 5], "positions are relative to the next batch"

    def test_skipped_files_are_replaced_in_pending_batches(self) -> None:
        feed, names = self.feed()
        list(islice(names, 3))
        feed.pop_batch()
        for left_out, again in (({4, 0}, [[3, 1, 5], [6, 7, 2], [3, 5, 6]]), ({7}, [[3, 1, 5], [6, 1, 2], [3, 5, 6]])):
            assert feed.skip(left_out)
            assert [labels_of(batch) for batch in islice(feed.encoded_paths(count()), 3)] == again

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_skip_fails_if_no_file_of_the_rank_is_left(self, shuffle: bool) -> None:
        feed = FileFeeder(
            [str(number) for number in range(8)], DistributedBatchSampler(8, 3, rank=1, world_size=2, seed=0, shuffle=shuffle)
        )
        assert feed.skip({1, 3, 5})
        assert feed.skip({7}) == shuffle, "even numbers belong to the other rank unless shuffled"
        assert not feed.skip({0, 2, 4, 6})


def test_dali_gpu_has_no_host_batches(tree: Path) -> None:
    with pytest.raises(UsageError, match="prepares its batches on the device"):
        open_host_loader(config("dali-gpu", tree), shard())


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("torch-default", "FLOAT"), ("amp-fp16", "FLOAT16"), ("amp-bf16", "FLOAT"), ("o2", "FLOAT16"), ("fp16", "FLOAT16"), ("bf16", "FLOAT")],
)
def test_dali_gpu_output_dtype_is_that_of_the_first_layer(precision: str, dtype: str, tree: Path) -> None:
    graph = gpu_graph(config("dali-gpu", tree, precision=precision), image_folder.read_index(str(tree)).files, torch.device("cuda", 3))
    assert (graph.dtype, graph.layout, graph.gpu) == (dtype, "HWC", 3)


def test_hardware_decoder_gets_its_load_and_the_largest_image_size(tree: Path) -> None:
    Image.new("RGB", (300, 40)).save(file_of(tree, 2), "JPEG")
    Image.new("RGB", (40, 200)).save(file_of(tree, 3), "JPEG")
    file_of(tree, 4).write_bytes(b"")
    for asked, kwargs in ((None, {}), (0.25, {"hw_decoder_load": 0.25})):
        graph = gpu_graph(
            config("dali-gpu", tree, hw_decoder_load=asked), image_folder.read_index(str(tree)).files, torch.device("cuda", 0)
        )
        assert graph.decoder == {"preallocate_width_hint": 300, "preallocate_height_hint": 200, **kwargs}
