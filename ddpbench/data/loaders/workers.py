"""DataLoader and its worker processes, for every recipe of samples."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddpbench.data.datasets.samples import ArraySamples, Collate, SampleRecipe, TreeSamples, Unreadable, read_samples
from ddpbench.data.loader import Finish, HostBatch
from ddpbench.data.loaders.fork_gc import leave_garbage_to_the_parent
from ddpbench.data.loaders.skipped_files import LeftOut
from ddpbench.data.loaders.stalled_worker import SHORT_OF_MEMORY, death_among, owed_by
from ddpbench.data.loaders.start_workers import begin, without_advice
from ddpbench.data.sampler import ShardPlan
from ddpbench.data.shard import Shard
from ddpbench.data.stopwatch import Stopwatch
from ddpbench.machine.signals import WATCHED, end_with_parent
from ddpbench.record.errors import BenchError
from ddpbench.record.record import Data
from ddpbench.record.resolved import Settled

leave_garbage_to_the_parent()


def open_workers(recipe: SampleRecipe, finish: Finish, config: Settled, shard: Shard) -> Workers:
    """Samples as ``recipe`` has them; what it leaves to do is ``finish``.

    Decoding starts at once, in ``config.workers`` processes that keep ``config.prefetch`` batches each; with none, in this one.
    """
    watch = Stopwatch()
    samples, data = read_samples(recipe, config, shard.dataset, watch)
    plan = ShardPlan(len(samples), config.batch_size, shard.rank, shard.world_size, config.seed, config.shuffle)
    batches = data_loader(samples, plan, watch, config, config.seed + shard.rank, shard.device)
    return Workers(batches, data, finish, config.skip_bad)


def data_loader(
    samples: TreeSamples | ArraySamples,
    batches: Iterable[list[int]],
    watch: Stopwatch,
    config: Settled,
    seed: int,
    device: torch.device,
) -> DataLoader[Any]:
    """A DataLoader with the workers that ``config`` asks for, over ``batches`` of sample numbers; ``watch`` is that of the samples.

    ``seed`` is what workers draw random views from.
    """
    with without_advice():
        return DataLoader(
            samples,
            batch_sampler=batches,
            num_workers=config.workers,
            prefetch_factor=config.prefetch if config.workers else None,
            collate_fn=Collate(watch),
            pin_memory=config.pin_memory and device.type == "cuda",
            worker_init_fn=tie_to_rank,
            generator=torch.Generator().manual_seed(seed),
        )


def tie_to_rank(worker: int) -> None:
    """Run in a worker: it ends with its rank, however that ends, and leaves Ctrl-C and SLURM's signals, which reach all, to it."""
    end_with_parent(signal.SIGKILL)
    for left in WATCHED:
        signal.signal(left, signal.SIG_IGN)


class Workers:
    """Batches of a DataLoader. Where its plan never ends, its workers start once and never wait for an epoch's end."""

    def __init__(self, batches: DataLoader[Any], data: Data, finish: Finish, allowed: int = 0) -> None:
        """``allowed`` files may be unreadable, before the next ends it all."""
        self.data = data
        self.in_flight = batches.num_workers * (batches.prefetch_factor or 0)
        self.finish = finish
        self._left_out = LeftOut(allowed)
        self._batches: Iterator[HostBatch | Unreadable]
        self._batches, self._processes = begin(batches, SHORT_OF_MEMORY)

    def next_batch(self) -> HostBatch:
        try:
            batch = next(self._batches)
        except (RuntimeError, OSError, EOFError) as problem:  # what a dead worker had handed over can often not be read either
            if death := death_among(self._processes):
                raise BenchError(death, SHORT_OF_MEMORY) from problem
            raise
        if isinstance(batch, Unreadable):
            self._left_out.add(batch.met)
            raise batch.problem
        if batch.sheet and batch.sheet.left_out:
            return replace(batch, sheet=replace(batch.sheet, left_out=tuple(self._left_out.add(batch.sheet.left_out))))
        return batch

    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def owed_by(self) -> str:
        """The worker that has the next batch to give; nothing where this process makes its own."""
        return owed_by(self._batches)

    def close(self) -> None:
        if self._processes:
            self._batches._shutdown_workers()  # type: ignore[attr-defined]  # there is no public way, and a traceback may keep the iterator alive
            self._processes = []
