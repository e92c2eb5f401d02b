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
"""Whether the collector was on when this thread forked."""


@cache
def freeze_gc_in_children() -> None:
    """From now on, in every child of this process. To collect it here, before every start, would take a quarter of a second.

    The collector rests while a child begins: it could run in what threading does there before it is the turn of ``_freeze``.
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
    """Samples as ``transforms`` has them; what it leaves to do is ``device_transform``.

    Decoding starts at once, in ``config.workers`` processes that keep ``config.prefetch`` batches each; with none, in this one.
    """
    watch = Stopwatch()
    samples, data = make_dataset(transforms, config, shard.dataset, watch)
    plan = DistributedBatchSampler(len(samples), config.batch_size, shard.rank, shard.world_size, config.seed, config.shuffle)
    batches = make_data_loader(samples, plan, watch, config, config.seed + shard.rank, shard.device)
    return DataLoaderAdapter(batches, data, device_transform, config.skip_bad)


def make_data_loader(
    samples: ImageFolderDataset | ArrayDataset,
    batch_sampler: Iterable[list[int]],
    watch: Stopwatch,
    config: ResolvedConfig,
    seed: int,
    device: torch.device,
) -> DataLoader[Any]:
    """A DataLoader with the workers that ``config`` asks for, over ``batch_sampler`` of sample numbers; ``watch`` is that of the samples.

    ``seed`` is what workers draw random views from.
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
    """Run in a worker: it ends with its rank, however that ends, and leaves Ctrl-C and SLURM's signals, which reach all, to it."""
    set_parent_death_signal(signal.SIGKILL)
    for left in HANDLED_SIGNALS:
        signal.signal(left, signal.SIG_IGN)


class DataLoaderAdapter:
    """Batches of a DataLoader. Where its plan never ends, its workers start once and never wait for an epoch's end."""

    def __init__(self, data_loader: DataLoader[Any], data: DatasetInfo, device_transform: DeviceTransform, max_skipped: int = 0) -> None:
        """``max_skipped`` files may be unreadable, before the next ends it all."""
        self.data = data
        self.max_prefetched = data_loader.num_workers * (data_loader.prefetch_factor or 0)
        self.device_transform = device_transform
        self._skipped = SkippedFiles(max_skipped)
        self._iterator: Iterator[HostBatch | BadBatch]
        self._iterator, self._processes = start_workers(data_loader, OUT_OF_MEMORY_HINT)

    def next_batch(self) -> HostBatch:
        try:
            batch = next(self._iterator)
        except (RuntimeError, OSError, EOFError) as problem:  # what a dead worker had handed over can often not be read either
            if death := dead_worker(self._processes):
                raise BenchError(death, OUT_OF_MEMORY_HINT) from problem
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
        """The worker that has the next batch to give; nothing where this process makes its own."""
        return stalled_worker(self._iterator)

    def close(self) -> None:
        if self._processes:
            self._iterator._shutdown_workers()  # type: ignore[attr-defined]  # there is no public way, and a traceback may keep the iterator alive
            self._processes = []


class SkippedFiles:
    """Those of one loader, of which ``allowed`` may be left out."""

    def __init__(self, max_skipped: int) -> None:
        self._max_skipped = max_skipped
        self._seen: set[str] = set()

    def add(self, problems: Iterable[BenchError]) -> list[BenchError]:
        """The new ones among these, each told of. Raises the error of the first that is one too many."""
        new: list[BenchError] = []
        for problem in problems:
            if problem.message in self._seen:
                continue
            if len(self._seen) == self._max_skipped:
                raise self.too_many_error(problem)
            self._seen.add(problem.message)
            print_note(f"left out: {problem.message}")
            new.append(problem)
        return new

    def too_many_error(self, problem: BenchError) -> BenchError:
        """The error of a file that may not be left out, with how many were."""
        others = len(self._seen - {problem.message})
        after = f", after {pluralize(others, 'other')} left out" if others else ""
        spent = f"--skip-bad {self._max_skipped} leaves out no more: repair the file, take it away, or give a larger number"
        return BenchError(f"{problem.message}{after}", spent if self._max_skipped else problem.hint)
