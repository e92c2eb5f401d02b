"""Simulate a data pipeline and the training that it feeds, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import accumulate
from random import Random


@dataclass(frozen=True)
class SimResult:
    """Mean step time in seconds, and the fraction of it in which all ranks wait because a batch is missing."""

    step_s: float
    data_wait_fraction: float


def simulate(params: SimParams, num_steps: int, rng: Random) -> SimResult:
    """Simulate ``num_steps`` steps, counted once the batches prefetched before the first are used up.

    A step lasts at least as long as the cores need for its work, and the storage for its files.
    """
    free = _simulate_without_core_limit(params, num_steps, rng)
    least = max(core_bound_step_s(params), params.storage_s)
    return free if free.step_s >= least else SimResult(least, max(0.0, 1 - (1 - free.data_wait_fraction) * free.step_s / least))


def core_bound_step_s(params: SimParams) -> float:
    """Seconds of a step that keeps every core busy all the time, if switching between processes costs nothing."""
    return params.ranks_per_node * params.step_cpu_s / params.cores if params.cores else 0.0


def _simulate_without_core_limit(params: SimParams, num_steps: int, rng: Random) -> SimResult:
    depth = params.workers * params.prefetch
    spans = rng.choices(params.step_times_s, k=num_steps + depth)
    batches = [rng.choices(params.batch_times_s[rank % len(params.batch_times_s)], k=len(spans)) for rank in range(params.ranks)]
    loader = _RankLoader if params.in_order or not params.workers else _UnorderedRankLoader
    ready = [loader(params, each) for each in batches]
    ends = [0.0] * (params.run_ahead + 1)  # end times of the last steps, oldest first
    began, waited = 0.0, 0.0
    for number, span in enumerate(spans):
        if number == depth:
            began, waited = ends[-1], 0.0
        host_free, device_free = ends[0], ends[-1]
        start = max(device_free, *[rank.take(number, host_free) for rank in ready])
        waited += start - device_free
        ends = [*ends[1:], start + span]
    return SimResult((ends[-1] - began) / num_steps, waited / (ends[-1] - began))


class _RankLoader:
    """One rank's loader: when the trainer gets each batch."""

    def __init__(self, params: SimParams, batch_times_s: Sequence[float]) -> None:
        self._batch_times_s = batch_times_s
        self._workers, self._depth = params.workers, params.workers * params.prefetch
        self._handoff_s, self._background_handoff = params.handoff_s, params.background_handoff
        self._done = [0.0] * params.workers  # when each worker finished its last batch
        self._taken = [0.0] * self._depth  # when the last batch in each prefetch slot was taken, which frees the slot
        self._handed = 0.0

    def take(self, number: int, trainer_free_s: float) -> float:
        """The time at which a trainer that requests batch ``number`` at ``trainer_free_s`` gets it."""
        if not self._workers:
            return trainer_free_s + self._batch_times_s[number] + self._handoff_s
        worker, slot = number % self._workers, number % self._depth
        issued_s, done_s = self._taken[slot], self._done[worker]
        ready_s = (issued_s if issued_s > done_s else done_s) + self._batch_times_s[number]
        self._done[worker] = ready_s
        self._taken[slot] = taken_s = self._hand_over(ready_s, trainer_free_s)
        return taken_s

    def _hand_over(self, ready_s: float, trainer_free_s: float) -> float:
        """The time at which the trainer has a batch that is ready at ``ready_s``."""
        if self._background_handoff:
            self._handed = ready_s = (ready_s if ready_s > self._handed else self._handed) + self._handoff_s
            return ready_s if ready_s > trainer_free_s else trainer_free_s
        return (ready_s if ready_s > trainer_free_s else trainer_free_s) + self._handoff_s


class _UnorderedRankLoader(_RankLoader):
    """One rank's loader with in_order=False: the trainer gets the batch that is ready first."""

    def __init__(self, params: SimParams, batch_times_s: Sequence[float]) -> None:
        super().__init__(params, batch_times_s)
        starts = [list(accumulate(batch_times_s[worker : self._depth : params.workers])) for worker in range(params.workers)]
        self._done = [ready[-1] for ready in starts]
        self._later_s = [deque(ready[1:]) for ready in starts]  # of each worker, when its other batches are ready
        self._next_s = [(ready[0], worker) for worker, ready in enumerate(starts)]  # a heap of the next batch of each worker
        heapify(self._next_s)

    def take(self, number: int, trainer_free_s: float) -> float:
        ready_s, worker = self._next_s[0]
        taken_s = self._hand_over(ready_s, trainer_free_s)
        batch_s = self._batch_times_s[(number + self._depth) % len(self._batch_times_s)]
        self._done[worker] = max(taken_s, self._done[worker]) + batch_s
        self._later_s[worker].append(self._done[worker])
        heapreplace(self._next_s, (self._later_s[worker].popleft(), worker))
        return taken_s


@dataclass(frozen=True)
class SimParams:
    """One training with its loader. Times are seconds of a process that has the core it needs, drawn at random from measured ones.

    ``batch_times_s`` holds one list per rank: how long a worker takes per batch. ``step_times_s`` are steps of all ranks together on
    batches that are ready, so gradient sync is included.
    """

    ranks: int
    workers: int  # per rank; 0 if the trainer makes its batches itself, between steps
    prefetch: int  # batches that a worker keeps ready
    batch_times_s: Sequence[Sequence[float]]
    step_times_s: Sequence[float]
    in_order: bool = True  # else the trainer gets the batch that is ready first
    handoff_s: float = 0.0  # from the end of a batch in its worker until the trainer has it
    background_handoff: bool = False  # a thread hands over while the trainer trains, like the DataLoader's pin-memory thread
    run_ahead: int = 0  # steps that the host may issue ahead of the device
    cores: float | None = None  # of one node; None if there are enough
    ranks_per_node: int = 1
    step_cpu_s: float = 0.0  # CPU seconds of a rank per step: of its workers for one batch, and of its trainer
    storage_s: float = 0.0  # seconds that a node's storage takes for the files of one step of all its ranks
