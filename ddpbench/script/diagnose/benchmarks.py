"""What a diagnosis measures between two batches, while the script's loop waits: loader, copies, decoding and storage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader

from ddpbench.analysis.worker_memory import workers_that_fit
from ddpbench.bench.loader_bench import BenchmarkedLoader, measure_delivery
from ddpbench.data.loaders.start_workers import no_torch_sigchld_handler, suppress_worker_count_warning
from ddpbench.distributed.bandwidth import h2d_bytes_per_s
from ddpbench.loaders.dali_decoder import release_memory
from ddpbench.loaders.resident import check_resident
from ddpbench.machine.rank_env import RankEnv
from ddpbench.machine.storage import benchmark_storage
from ddpbench.record.diagnosis import H2DBandwidth, LoaderBenchmark
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.loaders import DECODED_AHEAD
from ddpbench.record.prediction import Scenario
from ddpbench.script.diagnose.dataset_files import common_folder
from ddpbench.script.diagnose.device_decoding import benchmark_device_decoding
from ddpbench.script.diagnose.own_loader import SteeredIterator
from ddpbench.script.diagnose.pixel_comparison import compare_pixels
from ddpbench.script.diagnose.sample_comparison import probe_shared_files
from ddpbench.script.diagnose.shared_files import SharedFiles
from ddpbench.script.diagnose.stage import RankResults, Stage, first_line
from ddpbench.script.diagnose.trial_loader import open_decoding, open_resident, open_trial
from ddpbench.script.diagnose.worker_memory import make_room, measure_worker_memory
from ddpbench.script.observe.observer import Observer
from ddpbench.script.observe.source import DEFAULT_PREFETCH


class Benchmarks:
    """The benchmarks of one rank. They enter ``results``."""

    def __init__(self, rank_env: RankEnv, results: RankResults, shared_files: SharedFiles) -> None:
        self._rank, self._ranks_per_node, self._results = rank_env.rank, rank_env.local_world_size, results
        self._shared_files = shared_files

    def run(self, stage: Stage, iterator: SteeredIterator, observer: Observer, files: Sequence[str]) -> None:
        """Run the benchmark of ``stage``, if it concerns this rank. ``files`` are those of the dataset."""
        results, device = self._results, observer.device
        if stage.kind == "collect" and iterator.steered.repeated.has_batches:
            results.worker_memory = measure_worker_memory(iterator.steered, self._ranks_per_node)
        elif stage.kind == "benchmark" and stage.workers:
            with observer.paused():
                self._benchmark_more_workers(stage, iterator)
        elif stage.kind == "benchmark" and not stage.single_rank:
            with observer.paused():
                results.has_forked |= probe_shared_files(iterator.loader, self._shared_files)
            results.shared_handles = self._shared_files.shared(iterator.loader)
            results.benchmarks = [self._benchmark_own(stage, iterator, observer)]
            with suppress(Exception), observer.paused():  # of a script's dataset, or for lack of memory: then there is none
                results.resident_benchmark = benchmark_resident(iterator, device or torch.device("cpu"), self._rank, stage.seconds)
            if device is not None and "torchvision" in sys.modules:
                with suppress(Exception), observer.paused():  # as above, and where DALI is missing
                    results.pixel_difference = compare_pixels(iterator.loader, device)
                    results.decoding_benchmark = benchmark_decoding(iterator, device, self._rank, stage.seconds)
                release_memory()
        elif stage.kind == "benchmark" and self._rank == 0:
            results.single_rank_benchmark = self._benchmark_own(stage, iterator, observer)
        elif stage.kind == "copies" and device is not None:
            results.h2d_bandwidth = _benchmark_copies(device, iterator)
        elif stage.kind == "decoding" and device is not None:
            results.device_decoding = benchmark_device_decoding(files, iterator.steered.repeated.image_size, device, stage.seconds)
        elif stage.kind == "storage" and self._rank == 0:
            readers = max(1, iterator.source.workers * self._ranks_per_node)
            results.storage = benchmark_storage(common_folder(files), files, readers, stage.seconds)

    def _benchmark_own(self, stage: Stage, iterator: SteeredIterator, observer: Observer) -> LoaderBenchmark:
        """Of the script's own loader or, if its workers start again and again, of a copy that keeps them: their starts are no delivery."""
        if stage.whole_epochs and iterator.source.workers:
            with suppress(Exception), observer.paused():  # of a copy that cannot work
                memory = measure_worker_memory(iterator.steered, self._ranks_per_node)
                copied = open_trial(iterator.loader, Scenario(persistent_workers=True), memory, self._shared_files)
                make_room(iterator, copied, memory)
                self._results.has_forked = True
                return msgspec.structs.replace(benchmark_with_workers(copied, iterator, self._rank, stage.seconds), workers=None)
        return benchmark_own(iterator, self._rank, stage.seconds)

    def _benchmark_more_workers(self, stage: Stage, iterator: SteeredIterator) -> None:
        try:
            memory = measure_worker_memory(iterator.steered, self._ranks_per_node)
            prefetch = iterator.loader.prefetch_factor or DEFAULT_PREFETCH
            workers, prefetch = workers_that_fit(stage.workers, prefetch, memory) or (stage.workers, prefetch)
            copied = open_trial(iterator.loader, Scenario(workers=workers, prefetch=prefetch), memory, self._shared_files)
            make_room(iterator, copied, memory)
            self._results.has_forked = True
            self._results.all_cores_benchmark = benchmark_with_workers(copied, iterator, self._rank, stage.seconds)
        except Exception as problem:  # of a worker, too
            self._results.all_cores_problem = first_line(problem)


def _benchmark_copies(device: torch.device, iterator: SteeredIterator) -> H2DBandwidth:
    repeated = iterator.steered.repeated
    num_bytes = repeated.batch_bytes
    pinned, pageable = (h2d_bytes_per_s(device, num_bytes, pinned) for pinned in (True, False))
    return H2DBandwidth(pinned_bytes_per_s=pinned, pageable_bytes_per_s=pageable, bytes_per_sample=repeated.bytes_per_sample)


def benchmark_own(iterator: SteeredIterator, rank: int, seconds: float) -> LoaderBenchmark:
    """Drain the script's own loader for about ``seconds``."""
    source, steered = iterator.source, iterator.steered
    parallel = max(1, source.workers)
    loader = BenchmarkedLoader(steered, rank, parallel, parallel, source.prefetched)
    return measure_delivery(loader, iterator.drop_own, steered.first_batch_s, seconds)


def benchmark_resident(iterator: SteeredIterator, device: torch.device, rank: int, seconds: float) -> LoaderBenchmark:
    """Drain the script's data on ``device``, as ``ddpbench.loaders.resident`` reads them. Raises NotSupportedError where it does not."""
    check_resident(iterator.loader)
    return _benchmark_on_device(iterator, partial(open_resident, iterator.loader, device), rank, 0, seconds)


def benchmark_decoding(iterator: SteeredIterator, device: torch.device, rank: int, seconds: float) -> LoaderBenchmark:
    """Drain the script's images, as ``ddpbench.loaders.decode_on_gpu`` decodes them. Raises NotSupportedError where it does not."""
    return _benchmark_on_device(iterator, partial(open_decoding, iterator.loader, device), rank, DECODED_AHEAD, seconds)


def _benchmark_on_device(
    iterator: SteeredIterator, open_loader: Callable[[], DataLoader[Any]], rank: int, prefetched: int, seconds: float
) -> LoaderBenchmark:
    """Drain a loader of ddpbench's own, whose batches are complete on the device when it returns them."""
    begin_s = perf_counter()
    batches: Any = iter(open_loader())  # timed

    def drop_next() -> int:
        return iterator.source.num_samples_in(next(batches), batches.samples)

    drop_next()
    loader = BenchmarkedLoader(batches, rank, producers=1, burst_size=1, prefetched=prefetched)
    return msgspec.structs.replace(measure_delivery(loader, drop_next, perf_counter() - begin_s, seconds), workers=0)


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
