"""``--loader module:name``: user-defined loaders, and errors for batches that cannot be trained on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import sample_datasets
import torch
import user_loaders
from launches import rounds_on_disk
from open_loaders import config, opened, shard, take
from polling import wait_until

from ddpbench.bench.failure import describe_exception
from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.loaders.user import open_user_loader
from ddpbench.data.preflight import check_loader
from ddpbench.data.validation import held_out_batches
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.loaders import LOADER_KWARGS, accepted_kwargs, find_loader


def own(name: str, **asked: object) -> object:
    return config(f"user_loaders:{name}", **{"workers": 0, **asked})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_user_dataloader_is_sharded_by_rank_and_reshuffled(workers: int) -> None:
    seen = []
    for rank in range(2):
        settled = own("shared_out", workers=workers, batch_size=2)
        check_loader(settled, "imagenet", 1000, 2)
        with opened(settled, rank=rank, world_size=2) as live:
            images, labels = take(live, 6)
            assert images.shape == (12, 3, 32, 32)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert (live.max_prefetched, live.data.num_samples, live.data.loader) == (2 * workers, 10, "user_loaders:shared_out")
            assert (live.data.respawns_workers, live.data.file_kind, live.data.workers) == (workers > 0, "", workers)
            seen.append(labels.tolist())
    epochs = [[own[epoch * 4 : epoch * 4 + 4] for own in seen] for epoch in range(3)]
    assert all(len(Counter(first + second)) == 8 for first, second in epochs), "five per rank, of which one does not fill a batch"
    assert epochs[0] != epochs[1] != epochs[2]


def test_user_loader_workers_are_found_and_end_with_it() -> None:
    with opened(own("shared_out", workers=2)) as live:
        take(live, 1)
        pids = live.worker_pids()
        assert len(pids) == 2
        take(live, 8)  # across the epoch end, where workers are respawned
        pids += live.worker_pids()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("name", ["staying", "kept_by_its_class"])
def test_persistent_workers_are_not_respawned(name: str) -> None:
    with opened(own(name, workers=2)) as live:
        take(live, 1)
        pids = live.worker_pids()
        take(live, 8)  # across the epoch end
        assert live.worker_pids() == pids
        assert not live.data.respawns_workers


def test_stopwatch_runs_once_per_batch_without_separable_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    laps: list[str] = []
    monkeypatch.setattr(Stopwatch, "lap", lambda watch, stage, lap=Stopwatch.lap: (laps.append(stage), lap(watch, stage)))
    with opened(own("one_by_one", batch_size=2)) as live:
        take(live, 2)
    assert laps == ["sample", "collate"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
def test_unresponsive_helper_process_does_not_outlive_the_run(start: Callable[..., Any], results: Path, interrupted: bool) -> None:
    words = [
        "resnet18",
        "--image-size",
        "32",
        "--loader",
        "user_loaders:deaf",
        "-b",
        "2",
        "--device",
        "cpu",
        "--steps",
        "2",
        "-o",
        str(results),
    ]
    rounds = ["--rounds", "100000" if interrupted else "1"]
    running = start([sys.executable, "-m", "ddpbench", *words, *rounds], env={"PYTHONPATH": str(Path(user_loaders.__file__).parent)})
    if interrupted:
        running.until(lambda: rounds_on_disk(results) >= 1)
        os.kill(running.pid, signal.SIGTERM)
    assert running.wait(60).returncode == (143 if interrupted else 0)
    assert running.left_behind() == []


@pytest.mark.parametrize("workers", [0, 1])
def test_stages_are_reported_as_far_as_separable(workers: int, tmp_path: Path) -> None:
    sample_datasets.image_tree(tmp_path)
    default_stages = {"sample", "collate"}
    for name, stages in (("shared_out", default_stages), ("at_once", default_stages), ("folder", {"decode", "augment", "collate"})):
        with opened(own(name, data_dir=tmp_path, workers=workers)) as live:
            take(live, 4)
            loading = live.pop_stats()
            assert loading
            assert set(loading.cpu_s) == set(loading.wall_s) == stages
            assert all(0 < seconds < 30 for seconds in loading.wall_s.values())
            assert (loading.samples, len(loading.batch_ms)) == (8, 4)


def test_user_loader_receives_every_argument_it_accepts() -> None:
    assert accepted_kwargs(user_loaders.curious) == list(LOADER_KWARGS)
    with opened(own("curious", batch_size=4), "cifar10", classes=10, rank=1, world_size=3) as live:
        assert take(live, 1)[1].tolist() == [len("cifar10"), 9, 1, 3]


@pytest.mark.parametrize("name", ["generated", "streamed", "without_questions"])
def test_any_iterable_restarts_at_its_end(name: str) -> None:
    with opened(own(name)) as live:
        images, labels = take(live, 13)
    assert (images.shape, len(labels)) == ((26, 3, 32, 32), 26)
    assert len(set(labels.tolist())) > 2


def test_user_loader_has_no_held_out_data(tmp_path: Path) -> None:
    settled = own("without_questions")
    assert held_out_batches(settled, shard()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "batch_size", "says"),
    [
        ("nothing", 2, "returned NoneType"),
        ("empty", 2, "yielded no batch"),
        ("without_questions", 3, "yields batches of 2, but the batch size is 3"),
        ("without_questions", 1, "yields batches of 2, but the batch size is 1"),
        ("shared_out", 16, "yields batches of 10, but the batch size is 16"),
        ("dictionaries", 2, "yields dict"),
        ("of_another_side", 2, r"yields samples of 3x16x16 in float32, but the model needs 3x32x32 in float32"),
        ("of_bytes", 2, r"yields samples of 3x32x32 in uint8, but the model needs 3x32x32 in float32"),
        ("of_halves", 2, r"yields samples of 3x32x32 in float16, but the model needs 3x32x32 in float32"),
        ("with_short_labels", 2, r"yields labels of shape \(2,\) in int32, but the model needs \(2,\) in int64"),
        ("with_a_column_of_labels", 2, r"yields labels of shape \(2, 1\) in int64, but the model needs \(2,\) in int64"),
        ("with_one_label_for_all", 2, r"yields labels of shape \(\) in int64, but the model needs \(2,\) in int64"),
        ("with_a_class_too_many", 2, "yields labels from 0 to 1,000, but the model needs 0 to 999"),
        ("with_a_class_below_0", 2, "yields labels from -1 to 999, but the model needs 0 to 999"),
    ],
)
def test_invalid_user_batch_is_rejected(name: str, batch_size: int, says: str) -> None:
    with pytest.raises(BenchError, match=f"'user_loaders:{name}' {says}"), opened(own(name, batch_size=batch_size)) as live:
        take(live, 2)


def test_matrix_targets_are_supported() -> None:
    with opened(own("matrices"), "gemm", classes=8) as live:  # type: ignore[arg-type]
        assert take(live, 1)[1].shape == (2, 8)
    wrong = opened(own("matrices_with_labels"), "gemm", classes=8)  # type: ignore[arg-type]
    with pytest.raises(BenchError, match=r"targets of shape \(2,\) in int64, but the model needs \(2, 8\) in float32"), wrong as live:
        take(live, 1)


def test_workers_of_every_epoch_freeze_inherited_garbage() -> None:
    with opened(own("collector_states")) as live:  # type: ignore[arg-type]
        assert take(live, 4)[1].tolist() == [1] * 8, "two epochs with a new worker each"


def test_download_and_missing_folder_are_rejected_for_user_loaders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--download supports only built-in loaders, not 'user_loaders:generated'"):
        check_loader(own("generated", data_dir=tmp_path, download=True), "cifar10", 10, 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no such folder: '.*absent'"):
        check_loader(own("generated", data_dir=tmp_path / "absent"), "imagenet", 1000, 1)  # type: ignore[arg-type]
    (tmp_path / "one-file").touch()
    check_loader(own("generated", data_dir=tmp_path / "one-file"), "imagenet", 1000, 1)  # type: ignore[arg-type]


def test_worker_exception_is_reported_with_its_location() -> None:
    with opened(own("spoilt")) as live, pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0") as problem:
        take(live, 1)
    description = describe_exception(problem.value)
    assert description.reason == "bad sample 0:", "only the first line"
    line = next(at for at, text in enumerate(Path(user_loaders.__file__).read_text().splitlines(), 1) if "bad sample" in text)
    assert description.location == f"raised in {user_loaders.__file__}:{line}, in a DataLoader worker"


@pytest.mark.slow
def test_dead_user_worker_is_reported_with_its_signal(tmp_path: Path) -> None:
    settled = own("folder", data_dir=sample_datasets.image_tree(tmp_path, images=40), workers=1, batch_size=2)
    with opened(settled) as live:  # type: ignore[arg-type]
        take(live, 1)
        (victim,) = live.worker_pids()
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(BenchError, match=rf"loader worker {victim} died: SIGKILL"):
            take(live, 100)


def test_stalled_user_worker_is_reported(tmp_path: Path) -> None:
    settled = own("folder", data_dir=sample_datasets.image_tree(tmp_path, images=40), workers=1, batch_size=2)
    live = open_user_loader(settled, shard())  # type: ignore[arg-type]
    live.next_batch()
    (worker,) = map(psutil.Process, live.worker_pids())
    worker.suspend()
    assert wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, 10)
    assert live.stalled_worker().startswith(f"loader worker {worker.pid} (stopped) has not delivered its batch")
    worker.resume()
    live.close()
    assert live.worker_pids() == []
    alone = open_user_loader(own("one_by_one", batch_size=2), shard())  # type: ignore[arg-type]
    alone.next_batch()
    assert alone.stalled_worker() == "", "it has no workers"
    alone.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def train(:\n", "invalid syntax (odd.py, line 1)"),
        ("a = b\n", "NameError: name 'b' is not defined"),
        ("1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_module_that_fails_to_import_is_reported_in_one_line(text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as refused:
        find_loader("odd:train")
    assert refused.value.message.startswith(f"cannot load 'odd:train': {says}")
    assert "syntax" in says or f"raised in {tmp_path}/odd.py:1" in (refused.value.hint or "")


def test_bug_in_user_loader_keeps_its_exception() -> None:
    with opened(own("broken")) as live, pytest.raises(ValueError, match="a bug of mine"):
        take(live, 1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("user_loaders:NOT_A_LOADER", "is not a loader"),
        ("user_loaders:absent", "cannot load"),
        ("user_loaders:demanding", "'user_loaders:demanding' has unknown parameters: mood"),
    ],
)
def test_invalid_loader_is_rejected_before_opening(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        find_loader(name)


@pytest.mark.slow
def test_user_loader_output_does_not_corrupt_json_on_stdout(launch: Callable[..., Any], tmp_path: Path) -> None:
    words = ["resnet18", "--loader", "user_loaders:talkative", "-b", "2", "--steps", "2", "--rounds", "1", "--warmup", "1"]
    where = ["--image-size", "32", "--device", "cpu", "--json", "-", "-o", str(tmp_path)]
    done = launch([sys.executable, "-m", "ddpbench", *words, *where], env={"PYTHONPATH": str(Path(user_loaders.__file__).parent)})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"][0]["config"]["loader"] == "user_loaders:talkative"
    assert "hello from the function" in done.stderr
    assert "hello from a worker" in done.stderr


@pytest.mark.slow
def test_epochs_of_unknown_length_are_rejected(launch: Callable[..., Any], tmp_path: Path) -> None:
    words = ["resnet18", "--loader", "user_loaders:streamed", "-b", "2", "--epochs", "1", "--image-size", "32", "--device", "cpu"]
    done = launch(
        [sys.executable, "-m", "ddpbench", *words, "-o", str(tmp_path)], env={"PYTHONPATH": str(Path(user_loaders.__file__).parent)}
    )
    assert done.returncode == 2
    assert "error: --epochs needs the length of the dataset, which 'user_loaders:streamed' does not report" in done.stderr
