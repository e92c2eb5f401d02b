"""Samples that several workers read, beside those of the script's own way."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision.datasets import ImageFolder

from ddpbench.record.script import SampleComparison, SharedHandle
from ddpbench.script.diagnose.own_loader import timed_get_iterator
from ddpbench.script.diagnose.sample_comparison import MAX_SAMPLES, STREAM_WORKERS, WORKERS, compare_samples, probe_shared_files
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.observe.sample_digest import NotComparable, digest

RECORDS, SIZE = 512, 4096


class Samples(Dataset[Any]):
    def __init__(self, sample: Callable[[int], Any] = lambda index: torch.tensor([index, 2])) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class HiddenFile(Samples):
    """Opens a file as a library in C does: its descriptor is a plain number."""

    def __init__(self, path: Path, seeks: bool) -> None:
        self.descriptor, self.seeks = os.open(path, os.O_RDONLY), seeks

    def __getitem__(self, index: int) -> Any:
        if not self.seeks:
            return os.pread(self.descriptor, SIZE, index * SIZE)
        os.lseek(self.descriptor, index * SIZE, os.SEEK_SET)
        return os.read(self.descriptor, SIZE)


class Counting(Samples):
    """Numbers its samples in the order in which this process reads them: a worker begins at another."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def __getitem__(self, index: int) -> Any:
        return self.numbers.setdefault(index, len(self.numbers))


class OpenedByWorkerInit(Samples):
    """Works in workers only."""

    table: list[int]

    def __getitem__(self, index: int) -> Any:
        return self.table[index]


class Stream(IterableDataset[Any]):
    def __init__(self, sample: Callable[[int], Any], divided: bool = False, length: int = 4096) -> None:
        self.sample, self.divided, self.length = sample, divided, length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.divided else None
        for index in range(info.id if info else 0, self.length, info.num_workers if info else 1):
            yield self.sample(index)


def give_table(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.table = list(range(RECORDS))  # type: ignore[attr-defined]


def compared(dataset: Any, seconds: float = 5.0, **options: Any) -> SampleComparison:
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=8, **options)
    found = compare_samples(loader, SharedFiles(), seconds)
    assert multiprocessing.active_children() == []
    return found


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.bin"
    path.write_bytes(b"".join(index.to_bytes(4, "little") * (SIZE // 4) for index in range(RECORDS)))
    return path


def test_equal_samples() -> None:
    assert compared(Samples(), shuffle=True) == SampleComparison(workers=WORKERS, samples=MAX_SAMPLES)


def test_transforms_that_use_the_global_random_states_are_compared() -> None:
    found = compared(Samples(lambda index: (random.random(), np.random.rand(), torch.rand(3), index)), shuffle=True)
    assert found == SampleComparison(workers=WORKERS, samples=MAX_SAMPLES)


def test_random_states_of_the_script_are_left_alone() -> None:
    generator = torch.Generator()
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate(), generator.get_state()
    compared(Samples(lambda index: torch.rand(1)), shuffle=True, generator=generator)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert torch.equal(generator.get_state(), before[2])


def test_transforms_with_a_generator_of_their_own_cannot_be_compared() -> None:
    own = np.random.default_rng(0)
    found = compared(Samples(lambda index: own.random(4)))
    assert (found.not_compared, found.changes_samples) == ("random", False)


def test_samples_that_differ_from_read_to_read_are_left_out() -> None:
    own = np.random.default_rng(0)
    found = compared(Samples(lambda index: own.random(4) if index % 4 == 0 else index))
    assert (found.samples, found.unsteady, found.different) == (MAX_SAMPLES * 3 // 4, MAX_SAMPLES // 4, 0)


def test_state_of_a_worker_changes_samples() -> None:
    found = compared(Counting(), shuffle=True)
    assert found.different > MAX_SAMPLES / 2
    assert found.changes_samples
    found = compared(Samples(lambda index: (index, get_worker_info() is None)))
    assert found.different == MAX_SAMPLES


def test_script_with_workers_is_compared_with_one_worker() -> None:
    assert compared(OpenedByWorkerInit(), num_workers=2, worker_init_fn=give_table) == SampleComparison(
        workers=WORKERS, samples=MAX_SAMPLES
    )
    failed = compared(OpenedByWorkerInit(), worker_init_fn=give_table)
    assert (failed.not_compared, failed.changes_samples) == ("failed", True)
    assert "table" in failed.error


def test_dataset_of_the_script_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the hooks of a diagnosis, which time what reads the files of a folder."""
    (tmp_path / "a").mkdir()
    for index in range(8):
        Image.new("RGB", (4, 4), (index, 0, 0)).save(tmp_path / "a" / f"{index}.png")
    monkeypatch.setattr(DataLoader, "_get_iterator", timed_get_iterator(DataLoader._get_iterator))
    folder = ImageFolder(str(tmp_path), transform=np.asarray)
    before = dict(vars(folder))
    assert compared(folder, shuffle=True) == SampleComparison(workers=WORKERS, samples=MAX_SAMPLES)
    assert vars(folder) == before


def test_samples_that_hide_their_content_cannot_be_compared() -> None:
    found = compared(Samples(lambda index: count(index)))
    assert found.not_compared == "failed"
    assert found.error.endswith("NotComparable: count")


def test_slow_samples_are_compared_as_far_as_time_allows() -> None:
    def slow(index: int) -> int:
        torch.randn(300, 300).svd()
        return index

    found = compared(Samples(slow), seconds=0.3)
    assert 1 <= found.samples < MAX_SAMPLES
    assert found.different == 0


def test_file_that_a_library_has_opened_is_noticed_by_its_position(records: Path) -> None:
    dataset, files = HiddenFile(records, seeks=True), SharedFiles()
    loader = DataLoader(dataset, shuffle=True)
    os.lseek(dataset.descriptor, 77, os.SEEK_SET)
    probe_shared_files(loader, files)
    assert files.shared(loader) == [SharedHandle(name="HiddenFile", kind="descriptor", path=str(records))]
    assert os.lseek(dataset.descriptor, 0, os.SEEK_CUR) == 77, "it was moved back"
    os.close(dataset.descriptor)


def test_reads_at_a_given_place_share_nothing(records: Path) -> None:
    dataset, files = HiddenFile(records, seeks=False), SharedFiles()
    loader = DataLoader(dataset, shuffle=True)
    probe_shared_files(loader, files)
    assert files.shared(loader) == []
    assert compare_samples(loader, files, 5.0) == SampleComparison(workers=WORKERS, samples=MAX_SAMPLES)
    os.close(dataset.descriptor)


def test_workers_that_move_one_position_read_other_samples(records: Path) -> None:
    """Without the probe, the comparison finds it."""

    class Slow(HiddenFile):
        def __getitem__(self, index: int) -> Any:
            os.lseek(self.descriptor, index * SIZE, os.SEEK_SET)
            torch.randn(64, 64).svd()
            return os.read(self.descriptor, SIZE)

    dataset = Slow(records, seeks=True)
    assert compared(dataset, shuffle=True).different > 0
    os.close(dataset.descriptor)


# streams


def picture(index: int) -> Any:
    return {"key": f"{index:06d}", "image": torch.full((3, 4), float(index)), "label": index % 10}


def augmented(index: int) -> Any:
    return {"key": f"{index:06d}", "image": torch.rand(3, 4), "label": index % 10}


@pytest.mark.parametrize("sample", [picture, augmented, int, lambda index: torch.tensor([index, index])])
def test_streams_are_divided_or_repeat_each_other(sample: Callable[[int], Any]) -> None:
    divided = compared(Stream(sample, divided=True))
    assert (divided.different, divided.is_stream, divided.workers) == (0, True, STREAM_WORKERS)
    assert divided.samples == MAX_SAMPLES
    repeated = compared(Stream(sample))
    assert repeated.different > MAX_SAMPLES / 3
    assert repeated.changes_samples


def test_stream_that_a_worker_init_divides() -> None:
    def shard(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        stream: Any = info.dataset
        stream.sample = lambda index: picture(worker + STREAM_WORKERS * index)

    assert compared(Stream(picture), worker_init_fn=shard).different == 0


def test_local_counters_and_labels_do_not_show_a_repetition() -> None:
    found = compared(Stream(lambda index: (index // 2, index % 10, torch.full((4,), float(index))), divided=True))
    assert found.different == 0


class Shuffled(Stream):
    """Shuffles itself with the global generator: all of it, or the part of a worker."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.divided else None
        own = range(info.id if info else 0, self.length, info.num_workers if info else 1)
        for position in torch.randperm(len(own)).tolist():
            yield self.sample(own[position])


@pytest.mark.parametrize("sample", [picture, augmented])
def test_stream_that_shuffles_itself_is_not_called_divided(sample: Callable[[int], Any]) -> None:
    found = compared(Shuffled(sample, length=100_000))
    assert (found.not_compared, found.changes_samples, found.repeats_samples) == ("shuffled", True, False)
    found = compared(Shuffled(sample, length=100_000, divided=True))
    assert (found.not_compared, found.changes_samples) == (None, False)
    assert found.samples == MAX_SAMPLES


def test_stream_of_equal_samples_cannot_be_judged() -> None:
    found = compared(Stream(lambda index: torch.zeros(4)))
    assert (found.not_compared, found.changes_samples) == ("repetitive", True)


def test_short_stream_that_one_worker_reads_alone() -> None:
    class OfFirstWorker(Stream):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            return iter([]) if info and info.id else super().__iter__()

    assert compared(OfFirstWorker(picture, length=8)) == SampleComparison(workers=STREAM_WORKERS, samples=8, is_stream=True)


def test_webdataset_divides_its_samples_only_if_it_is_asked_to(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for shard in range(4):
        with webdataset.TarWriter(str(tmp_path / f"{shard}.tar")) as writer:
            for index in range(64):
                writer.write({"__key__": f"{shard}-{index}", "txt": f"{shard} {index}"})
    shards = [str(path) for path in tmp_path.glob("*.tar")]
    divided = webdataset.DataPipeline(
        webdataset.SimpleShardList(shards), webdataset.split_by_worker, webdataset.tarfile_to_samples(), webdataset.decode()
    )
    whole = webdataset.DataPipeline(webdataset.SimpleShardList(shards), webdataset.tarfile_to_samples(), webdataset.decode())
    assert compared(divided).different == 0
    assert compared(whole).different > 0


# digests

Pair = namedtuple("Pair", "x y")


@dataclass(slots=True)
class Slotted:
    value: Any


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(
    "make",
    [
        lambda value: torch.full((2, 3), value),
        lambda value: torch.full((2,), value).bfloat16(),
        lambda value: torch.tensor(value),
        lambda value: np.array([value, 1.0]),
        lambda value: np.array([{"a": value}, None], dtype=object),
        lambda value: np.float32(value),
        lambda value: Image.new("L", (2, 2), int(value)),
        lambda value: {"a": [value, ("b", {1, int(value)})]},
        lambda value: Pair(value, 1),
        lambda value: Slotted(value),
        lambda value: Plain([Plain(value)]),
        lambda value: UserDict(a=value),
        lambda value: f"{value}".encode(),
    ],
)
def test_digest_shows_every_difference(make: Callable[[float], Any]) -> None:
    assert digest(make(3.0)) == digest(make(3.0))
    assert digest(make(3.0)) != digest(make(4.0))


def test_digest_shows_type_shape_and_nesting() -> None:
    different = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4, dtype=torch.float64),
        np.zeros(4, np.float32),
        [0.0] * 4,
        (0.0,) * 4,
        [[0.0], 0.0, 0.0, 0.0],
        [[0.0, 0.0], 0.0, 0.0],
        torch.tensor([float("nan")]),
        None,
        0,
        False,
        "0",
    ]
    assert len({digest(each) for each in different}) == len(different)
    assert digest(torch.tensor([float("nan")])) == digest(torch.tensor([float("nan")]))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


@pytest.mark.parametrize("hidden", [iter([1]), torch.Generator(), torch.zeros(2).to_sparse(), [object()]])
def test_content_that_cannot_be_seen_is_not_compared(hidden: Any) -> None:
    with pytest.raises(NotComparable):
        digest(hidden)
