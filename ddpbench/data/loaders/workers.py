"""DataLoader and its worker processes."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.datasets.samples import ArrayDataset, BadBatch, Collate, ImageFolderDataset, TransformSpec, make_dataset
from ddpbench.data.loader import DeviceTransform, HostBatch
from ddpbench.data.loaders.start_workers import (
    OUT_OF_MEMORY_HINT,
    dead_worker,
    stalled_worker,
    start_workers,
    suppress_worker_count_warning,
)
from ddpbench.data.sampler import DistributedBatchSampler
from ddpbench.data.shard import Shard
from ddpbench.machine.signals import HANDLED_SIGNALS, set_parent_death_signal
from ddpbench.machine.streams import print_note
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.record import DatasetInfo
from ddpbench.record.text import pluralize

_gc_state = threading.local()
"""Whether the garbage collector was enabled when this thread forked."""


@cache
def freeze_gc_in_children() -> None:
    """Freeze the garbage collector's objects in every child forked from now on.

    Collecting here before every start would take a quarter of a second. The collector is disabled during the fork: it could otherwise run
    in threading's fork handlers, before ``_freeze_gc``.
    """
    os.register_at_fork(before=_disable_gc, after_in_parent=_restore_gc, after_in_child=_freeze_gc)


def _disable_gc() -> None:
    _gc_state.on = gc.isenabled()
    gc.disable()


def _restore_gc() -> None:
    if _gc_state.on:
        gc.enable()


def _freeze_gc() -> None:
    gc.freeze()
    gc.enable()


freeze_gc_in_children()


def open_data_loader(
    transforms: TransformSpec, device_transform: DeviceTransform, config: ResolvedConfig, shard: Shard
) -> DataLoaderAdapter:
    """A DataLoader with the samples of ``transforms``.

    ``device_transform`` runs on the device. Decoding starts at once, in ``config.workers`` processes that prefetch ``config.prefetch``
    batches each; with 0 workers, in this process.
    """
    watch = Stopwatch()
    samples, data = make_dataset(transforms, config, shard.dataset, watch)
    sampler = DistributedBatchSampler(len(samples), config.batch_size, shard.rank, shard.world_size, config.seed, config.shuffle)
    batches = make_data_loader(samples, sampler, watch, config, config.seed + shard.rank, shard.device)
    return DataLoaderAdapter(batches, data, device_transform, config.skip_bad)


def make_data_loader(
    samples: ImageFolderDataset | ArrayDataset,
    batch_sampler: Iterable[list[int]],
    watch: Stopwatch,
    config: ResolvedConfig,
    seed: int,
    device: torch.device,
) -> DataLoader[Any]:
    """A DataLoader with the workers that ``config`` asks for.

    ``batch_sampler`` yields sample indices, ``watch`` is that of ``samples``, and ``seed`` seeds the workers' random augmentation.
    """
    with suppress_worker_count_warning():
        return DataLoader(
            samples,
            batch_sampler=batch_sampler,
            num_workers=config.workers,
            prefetch_factor=config.prefetch if config.workers else None,
            collate_fn=Collate(watch),
            pin_memory=config.pin_memory and device.type == "cuda",
            worker_init_fn=worker_init,
            generator=torch.Generator().manual_seed(seed),
        )


def worker_init(worker: int) -> None:
    """Initialise a worker: it ends with its rank, however the rank ends.

    It ignores Ctrl-C and SLURM's signals, which reach all processes, and leaves them to the rank.
    """
    set_parent_death_signal(signal.SIGKILL)
    for signum in HANDLED_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


class DataLoaderAdapter:
    """A HostLoader over a DataLoader.

    If its sampler never ends, its workers start once and never wait at the end of an epoch.
    """

    def __init__(self, data_loader: DataLoader[Any], data: DatasetInfo, device_transform: DeviceTransform, max_skipped: int = 0) -> None:
        """Up to ``max_skipped`` files may be unreadable; the next one is an error."""
        self.data = data
        self.max_prefetched = data_loader.num_workers * (data_loader.prefetch_factor or 0)
        self.device_transform = device_transform
        self._skipped = SkippedFiles(max_skipped)
        self._iterator: Iterator[HostBatch | BadBatch]
        self._iterator, self._processes = start_workers(data_loader, OUT_OF_MEMORY_HINT)

    def next_batch(self) -> HostBatch:
        try:
            batch = next(self._iterator)
        except (RuntimeError, OSError, EOFError) as problem:  # data from a dead worker are often unreadable, too
            if message := dead_worker(self._processes):
                raise BenchError(message, OUT_OF_MEMORY_HINT) from problem
            raise
        if isinstance(batch, BadBatch):
            self._skipped.add(batch.skipped_files)
            raise batch.error
        if batch.worker_timing and batch.worker_timing.skipped_files:
            return replace(
                batch, worker_timing=replace(batch.worker_timing, skipped_files=tuple(self._skipped.add(batch.worker_timing.skipped_files)))
            )
        return batch

    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def stalled_worker(self) -> str:
        """Describe the worker that owes the next batch; empty without workers."""
        return stalled_worker(self._iterator)

    def close(self) -> None:
        if self._processes:
            self._iterator._shutdown_workers()  # type: ignore[attr-defined]  # no public API, and a traceback may keep the iterator alive
            self._processes = []


class SkippedFiles:
    """Unreadable files of one loader, of which up to ``max_skipped`` may be skipped."""

    def __init__(self, max_skipped: int) -> None:
        self._max_skipped = max_skipped
        self._seen: set[str] = set()

    def add(self, problems: Iterable[BenchError]) -> list[BenchError]:
        """Add files, print a note for each new one, and return the new ones.

        Raises the error of the first file beyond the maximum.
        """
        new: list[BenchError] = []
        for problem in problems:
            if problem.message in self._seen:
                continue
            if len(self._seen) == self._max_skipped:
                raise self.too_many_error(problem)
            self._seen.add(problem.message)
            print_note(f"skipped: {problem.message}")
            new.append(problem)
        return new

    def too_many_error(self, problem: BenchError) -> BenchError:
        """The error of a file that may not be skipped, with the number of skipped ones."""
        others = len(self._seen - {problem.message})
        after = f", after {pluralize(others, 'other')} skipped" if others else ""
        hint = f"--skip-bad {self._max_skipped} is exceeded: repair or remove the file, or use a larger number"
        return BenchError(f"{problem.message}{after}", hint if self._max_skipped else problem.hint)
