"""Benchmarks of the script's loader while its loop waits: as it is, and with more workers."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import msgspec
from torch.utils.data import DataLoader

from ddpbench.bench.loader_bench import BenchmarkedLoader, measure_delivery
from ddpbench.data.loaders.start_workers import no_torch_sigchld_handler, suppress_worker_count_warning
from ddpbench.record.diagnosis import LoaderBenchmark
from ddpbench.record.errors import ConfigFailed
from ddpbench.script.diagnose.own_loader import SteeredIterator


def benchmark_own(iterator: SteeredIterator, rank: int, seconds: float) -> LoaderBenchmark:
    """Drain the script's own loader for about ``seconds``."""
    source, steered = iterator.source, iterator.steered
    parallel = max(1, source.workers)
    loader = BenchmarkedLoader(steered, rank, parallel, parallel, source.prefetched)
    return measure_delivery(loader, iterator.drop_own, steered.first_batch_s, seconds)


def benchmark_with_workers(copied: DataLoader[Any], iterator: SteeredIterator, rank: int, seconds: float) -> LoaderBenchmark:
    """Drain ``copied``, a copy of the script's loader with other workers, which it keeps; a stream that ends begins again.

    Raises ConfigFailed if the copy cannot work.
    """
    begin_s, workers = perf_counter(), copied.num_workers

    def begin() -> Any:
        with suppress_worker_count_warning(), no_torch_sigchld_handler():
            return iter(copied)  # timed; the same one again, since it keeps its workers

    batches = begin()

    def drop_next() -> int:
        batch = next(batches, batches)
        if batch is batches:
            batch = next(begin(), batches)
        if batch is batches:
            raise ConfigFailed("the loader yields no batch")
        return iterator.source.num_samples_in(batch, batches.samples)

    drop_next()
    first_batch_s = perf_counter() - begin_s
    prefetched = workers * (copied.prefetch_factor or 1)
    loader = BenchmarkedLoader(batches, rank, workers, workers, prefetched)
    benchmark = measure_delivery(loader, drop_next, first_batch_s, seconds)
    return msgspec.structs.replace(benchmark, workers=workers)
