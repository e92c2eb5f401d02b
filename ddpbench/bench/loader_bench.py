"""Loader benchmark: how fast and how evenly a loader delivers batches without training, and its CPU and memory cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch

from ddpbench.data.loader import Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.distributed.world import World
from ddpbench.machine.backends import set_num_threads
from ddpbench.machine.cpu import CpuMonitor, set_affinity
from ddpbench.machine.host import cpu_seconds, rss_bytes
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.diagnosis import LoaderBenchmark
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.loaders import find_loader
from ddpbench.workloads import registry as workloads

WINDOW_S = 2.0
MAX_WINDOWS = 3
"""Maximum windows to wait for a slow loader, first until it runs evenly, then for one batch per worker."""

MIN_BURSTS = 2

MAX_BATCHES = 2000
"""Maximum batches: a fast loader needs no more."""


def benchmark_loader(
    config: ResolvedConfig, world: World, window_s: float, on_result: Callable[[Loader, LoaderBenchmark], None] | None = None
) -> LoaderBenchmark:
    """Benchmark this rank's loader for about ``window_s`` seconds, after its first prefetch window, when all workers start at once.

    Batches are dropped. Only whole bursts are counted, one batch per worker. ``on_result`` is called with the loader, while it still
    runs, and the result.
    """
    set_num_threads(config.threads)
    set_affinity(config.cores, world.rank_env.local_rank)
    spec = workloads.find_workload(config.workload)
    began = perf_counter()
    loader = open_loader(config, Shard.from_world(spec.dataset, spec.classes, world))
    try:
        on_gpu = world.device.is_cuda and find_loader(config.loader).on_device
        drain = BatchDrain(loader, config.batch_size, torch.cuda.current_stream(world.device.torch_device) if on_gpu else None)
        drain.drop_next()
        first_batch_s = perf_counter() - began
        workers = loader.data.effective_workers(config.workers)
        producers = max(1, find_loader(config.loader).num_producers(workers))
        source = BenchmarkedLoader(loader, world.rank, producers, max(1, workers), loader.max_prefetched - 1)
        benchmark = measure_delivery(source, drain.drop_next, first_batch_s, window_s)
        if on_result:
            on_result(loader, benchmark)
        return benchmark
    finally:
        loader.close()
        world.device.synchronize()


class DeliveringLoader(Protocol):
    """What a loader benchmark needs to know of a loader."""

    def worker_pids(self) -> list[int]:
        """Process ids of its workers."""

    def pop_stats(self) -> LoaderStats | None:
        """Statistics of the batches since the last call; None if there are none."""


@dataclass(frozen=True)
class BenchmarkedLoader:
    """A loader that is open, and the numbers by which its benchmark is measured."""

    loader: DeliveringLoader
    rank: int
    producers: int  # batches made in parallel
    burst_size: int  # batches that may arrive together
    prefetched: int  # batches that may be ready


def measure_delivery(source: BenchmarkedLoader, drop_next: Callable[[], int], first_batch_s: float, window_s: float) -> LoaderBenchmark:
    """Take batches by ``drop_next``: first those that are ready, then for about ``window_s`` seconds those that are measured.

    ``drop_next`` returns the number of samples in the batch.
    """
    loader = source.loader
    _skip_prefetched(drop_next, source.prefetched, min_batches=source.producers - 1, window_s=window_s)
    loader.pop_stats()  # reset: statistics count from here
    monitor, cpu_times_before = CpuMonitor(), CpuTimes.read(loader)
    monitor.start()
    intervals_s, samples = _measure_intervals(drop_next, source.burst_size, window_s)
    cpu_usage, cpu_times = monitor.finish(), CpuTimes.read(loader).since(cpu_times_before)
    workers_rss = [rss for pid in loader.worker_pids() if (rss := rss_bytes(pid)) is not None]
    return LoaderBenchmark(
        rank=source.rank,
        elapsed_s=sum(intervals_s),
        samples=samples,
        intervals_ms=[round(1e3 * interval_s, 4) for interval_s in intervals_s],
        first_batch_s=first_batch_s,
        loader_cpu_s=cpu_times.loader_s,
        main_process_cpu_s=cpu_times.main_s,
        workers_rss_bytes=sum(workers_rss) if workers_rss else None,
        loader_stats=loader.pop_stats(),
        cpu_usage=cpu_usage,
    )


class BatchDrain:
    """Takes batches and drops them. If they are made on a GPU, synchronises their ``stream``, since the host only requests them.

    It does not synchronise the whole GPU, on which the loader may already work on the next batches.
    """

    def __init__(self, loader: Loader, batch_size: int, stream: torch.cuda.Stream | None) -> None:
        self._loader, self._batch_size, self._stream = loader, batch_size, stream

    def drop_next(self) -> int:
        self._loader.next_batch(lambda: None)
        if self._stream:
            self._stream.synchronize()
        return self._batch_size


def _skip_prefetched(drop_next: Callable[[], int], max_batches: int, min_batches: int, window_s: float) -> None:
    """Drop ``max_batches`` batches; after ``MAX_WINDOWS`` windows stop early, but not before ``min_batches``."""
    end = perf_counter() + MAX_WINDOWS * window_s
    for number in range(max_batches):
        if number >= min_batches and perf_counter() > end:
            break
        drop_next()


def _measure_intervals(drop_next: Callable[[], int], burst_size: int, window_s: float) -> tuple[list[float], int]:
    """Seconds between consecutive batches, and their samples: whole bursts, unless even one takes too long; at least one interval.

    If the first lasts for a window, another follows if time allows: it alone may show what workers meet that begin all at once.
    """
    intervals_s: list[float] = []
    samples, limit_s = 0, MAX_WINDOWS * window_s
    last = began = perf_counter()
    while not intervals_s or (len(intervals_s) < MAX_BATCHES and last - began < limit_s):
        bursts, rest = divmod(len(intervals_s), burst_size)
        has_time = bursts < MIN_BURSTS and 2 * (last - began) < limit_s
        if intervals_s and not rest and last - began >= window_s and not has_time:
            break
        samples += drop_next()
        now = perf_counter()
        intervals_s.append(now - last)
        last = now
    return intervals_s, samples


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds so far, of this process and of its loader's workers."""

    workers_s: float
    process_s: float
    thread_s: float  # of the calling thread
    has_workers: bool

    @classmethod
    def read(cls, loader: DeliveringLoader) -> CpuTimes:
        pids = loader.worker_pids()
        return cls(cpu_seconds(pids), time.process_time(), time.thread_time(), bool(pids))

    def since(self, before: CpuTimes) -> CpuTimes:
        return CpuTimes(
            self.workers_s - before.workers_s, self.process_s - before.process_s, self.thread_s - before.thread_s, self.has_workers
        )

    @property
    def loader_s(self) -> float:
        """CPU seconds of the workers; without workers, of this process's other threads."""
        return self.workers_s if self.has_workers else max(0.0, self.process_s - self.thread_s)

    @property
    def main_s(self) -> float:
        """CPU seconds of this process besides ``loader_s``."""
        return self.process_s if self.has_workers else self.thread_s
