"""Loader benchmarks of a script: its own loader, and a copy of it with other workers."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import polling
import pytest
import torch
from steered_loaders import steer, timed_loaders
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ddpbench.record.diagnosis import WorkerMemory
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.prediction import Scenario
from ddpbench.script.diagnose.benchmarks import benchmark_own, benchmark_with_workers
from ddpbench.script.diagnose.own_loader import SteeredIterator
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.diagnose.trial_loader import open_trial
from ddpbench.script.diagnose.worker_memory import measure_worker_memory, shared_bytes


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index


class ShortStream(IterableDataset[int]):
    def __init__(self, samples: int = 8) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(info.id if info else 0, self.samples, info.num_workers if info else 1)


class Large(Numbers):
    """Each worker makes an object of its own."""

    def __getitem__(self, index: int) -> int:
        self.own = bytearray(2**26)
        return index


class Images(Numbers):
    """A batch of two takes 8 MiB."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2**20)


pytestmark = pytest.mark.usefixtures(timed_loaders.__name__)


def steered(dataset: Any, **arguments: Any) -> SteeredIterator:
    return steer(DataLoader(dataset, batch_size=2, **arguments))


def two_workers(iterator: SteeredIterator) -> DataLoader[Any]:
    return open_trial(iterator.loader, Scenario(workers=2), WorkerMemory(batch_bytes=0, memory_bytes=2**40), SharedFiles())


def test_own_loader_is_drained_without_counting_for_the_script() -> None:
    iterator = steered(Numbers())
    found = benchmark_own(iterator, rank=0, seconds=0.01)
    assert (found.workers, found.rank, iterator.num_given) == (None, 0, 0)
    assert found.samples == 2 * len(found.intervals_ms)


def test_copy_has_its_own_workers_which_end_with_the_benchmark() -> None:
    iterator = steered(Numbers())
    found = benchmark_with_workers(two_workers(iterator), iterator, rank=1, seconds=0.01)
    assert (found.workers, found.rank) == (2, 1)
    assert found.loader_stats is not None
    assert set(found.loader_stats.cpu_s) == {"sample", "collate"}
    assert found.loader_stats.handoff_ms is None or found.loader_stats.handoff_ms > 0
    assert next(iterator).tolist() == [0, 1], "the script's own loader is where it was"
    assert multiprocessing.active_children() == []


def test_stream_that_ends_begins_again() -> None:
    iterator = steered(ShortStream())
    found = benchmark_with_workers(two_workers(iterator), iterator, rank=0, seconds=0.3)
    assert found.samples > 8, "more than one pass"
    assert multiprocessing.active_children() == []


def test_stream_without_a_sample_has_no_benchmark() -> None:
    iterator = steered(ShortStream(samples=0))
    with pytest.raises(ConfigFailed, match="yields no batch"):
        benchmark_with_workers(two_workers(iterator), iterator, rank=0, seconds=1.0)
    assert multiprocessing.active_children() == []


def test_memory_of_a_worker_is_what_it_shares_with_no_other() -> None:
    def memory(iterator: SteeredIterator, ranks: int) -> WorkerMemory:
        iterator.steered.repeated.keep(next(iterator))
        return measure_worker_memory(iterator.steered, ranks)

    iterator = steered(Large(), num_workers=2)
    assert 2**26 < memory(iterator, 1).worker_bytes < 2**28
    assert memory(iterator, 4).worker_bytes > 4 * 2**26
    alone = memory(steered(Numbers()), 2)
    assert (alone.batch_bytes, alone.worker_bytes) == (2 * 2 * 8, 0), "two numbers on two ranks, no workers"
    assert memory(steered(ShortStream(), num_workers=1), 1).batch_bytes == 2 * 8, "its iterator has no length"


def seen_bytes() -> int:
    """Of two workers that have loaded as many batches as they may ahead of the one that was taken."""
    loader: DataLoader[Any] = DataLoader(Images(), batch_size=2, num_workers=2)
    batches: Any = iter(loader)
    kept = next(batches)
    pids = [os.getpid(), *(each.pid for each in batches._workers)]
    polling.wait_until(lambda: shared_bytes(pids) >= 5 * 2**23, timeout_s=10)
    del loader
    return shared_bytes(pids) if kept is not None else 0


def test_batches_of_workers_are_seen_in_shared_memory() -> None:
    """Rarely a worker that was just forked hangs, and has no batch: then the next ones are asked."""
    found = [seen_bytes()]
    while found[-1] < 5 * 2**23 and len(found) < 3:
        found.append(seen_bytes())
    assert 5 * 2**23 <= found[-1] < 6 * 2**23, found
