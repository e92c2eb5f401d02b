"""A loader with nobody training: how fast it gives batches, how evenly, and what that costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from ddpbench.data.loader import Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.registry import find
from ddpbench.data.shard import Shard
from ddpbench.distributed.world import World
from ddpbench.machine.affinity import keep_to
from ddpbench.machine.backends import set_threads
from ddpbench.machine.cpu_usage import CoreWatch
from ddpbench.machine.host import cpu_seconds, resident_bytes
from ddpbench.record.diagnosis import Alone
from ddpbench.record.resolved import Settled
from ddpbench.workloads import registry as workloads

WINDOW_S = 2.0
LONGEST = 3
"""A slow loader is waited for up to so many windows, first until it runs evenly and then for a batch of every worker."""

MOST_BATCHES = 2000
"""A fast one has told all by then."""


def loader_alone(config: Settled, world: World, window_s: float, then: Callable[[Loader, Alone], None] | None = None) -> Alone:
    """This rank's loader for about ``window_s`` seconds, after its first prefetch window, in which its workers all begin at once.

    Nothing is done with a batch. Whole turns of the workers are counted, whose batches come in bursts. ``then`` is called with the
    loader while it still runs, and with what was found.
    """
    set_threads(config.threads)
    keep_to(config.cores, world.seat.local_rank)
    spec = workloads.find(config.workload)
    began = perf_counter()
    loader = open_loader(config, Shard.of(spec.dataset, spec.classes, world))
    try:
        on_gpu = world.device.cuda and find(config.loader).on_device
        taken = Taken(loader, torch.cuda.current_stream(world.device.torch) if on_gpu else None)
        taken.next()
        first_batch_s = perf_counter() - began
        workers = loader.data.workers_where(config.workers)
        turn = max(1, workers)
        makers = max(1, find(config.loader).makers(workers))
        _pass_by(taken, most=loader.in_flight - 1, least=makers - 1, window_s=window_s)
        loader.loading()  # tells from here on
        watch, before = CoreWatch(), Spent.of(loader)
        watch.start()
        intervals_s = _window(taken, turn, window_s)
        cores, spent = watch.finish(), Spent.of(loader).since(before)
        resident = [held for pid in loader.worker_pids() if (held := resident_bytes(pid)) is not None]
        alone = Alone(
            rank=world.rank,
            seconds=sum(intervals_s),
            images=len(intervals_s) * config.batch_size,
            intervals_ms=[round(1e3 * interval_s, 4) for interval_s in intervals_s],
            first_batch_s=first_batch_s,
            cpu_s=spent.loading_s,
            main_cpu_s=spent.main_s,
            memory_bytes=sum(resident) if resident else None,
            loading=loader.loading(),
            cores=cores,
        )
        if then:
            then(loader, alone)
        return alone
    finally:
        loader.close()
        world.device.synchronize()


class Taken:
    """Batches that are taken and dropped. For one that is made on a GPU its ``stream`` is waited for: the host only asks for it.

    Not the whole GPU, on which a loader may be busy with the batches after it.
    """

    def __init__(self, loader: Loader, stream: torch.cuda.Stream | None) -> None:
        self._loader, self._stream = loader, stream

    def next(self) -> None:
        self._loader.next_batch(lambda: None)
        if self._stream:
            self._stream.synchronize()


def _pass_by(taken: Taken, most: int, least: int, window_s: float) -> None:
    """Takes ``most`` batches, or at least ``least`` while that lasts too long."""
    end = perf_counter() + LONGEST * window_s
    for number in range(most):
        if number >= least and perf_counter() > end:
            break
        taken.next()


def _window(taken: Taken, turn: int, window_s: float) -> list[float]:
    """Seconds between one batch and the next: of whole turns, unless even one of those lasts too long. There is one at least."""
    intervals_s: list[float] = []
    last = began = perf_counter()
    while not intervals_s or (len(intervals_s) < MOST_BATCHES and last - began < LONGEST * window_s):
        if intervals_s and len(intervals_s) % turn == 0 and last - began >= window_s:
            break
        taken.next()
        now = perf_counter()
        intervals_s.append(now - last)
        last = now
    return intervals_s


@dataclass(frozen=True)
class Spent:
    """CPU seconds so far, of this process and of the workers of its loader."""

    workers_s: float
    process_s: float
    thread_s: float  # of the calling thread
    has_workers: bool

    @classmethod
    def of(cls, loader: Loader) -> Spent:
        pids = loader.worker_pids()
        return cls(cpu_seconds(pids), time.process_time(), time.thread_time(), bool(pids))

    def since(self, before: Spent) -> Spent:
        return Spent(
            self.workers_s - before.workers_s, self.process_s - before.process_s, self.thread_s - before.thread_s, self.has_workers
        )

    @property
    def loading_s(self) -> float:
        """Of the workers; of a loader without any, of this process's other threads."""
        return self.workers_s if self.has_workers else max(0.0, self.process_s - self.thread_s)

    @property
    def main_s(self) -> float:
        """Of this process beside them."""
        return self.process_s if self.has_workers else self.thread_s
