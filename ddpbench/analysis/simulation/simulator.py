"""Simulates a data pipeline and the training that it feeds, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class SimResult:
    """The mean of a step in seconds, and the share of it in which no rank can go on for want of a batch."""

    step_s: float
    data_wait_fraction: float


def simulate(params: SimParams, num_steps: int, rng: Random) -> SimResult:
    """The course of so many steps, counted once the batches that were made ahead of the first are used up.

    A step lasts at least as long as the cores need for its work, and the storage for its files.
    """
    free = _simulate_without_core_limit(params, num_steps, rng)
    least = max(core_bound_step_s(params), params.storage_s)
    return free if free.step_s >= least else SimResult(least, max(0.0, 1 - (1 - free.data_wait_fraction) * free.step_s / least))


def core_bound_step_s(params: SimParams) -> float:
    """Seconds of a step that keeps every core busy all the time: they take turns, and none of their time is lost."""
    return params.ranks_per_node * params.step_cpu_s / params.cores if params.cores else 0.0


def _simulate_without_core_limit(params: SimParams, num_steps: int, rng: Random) -> SimResult:
    depth = params.workers * params.prefetch
    spans = rng.choices(params.step_times_s, k=num_steps + depth)
    ready = [
        _RankLoader(params, rng.choices(params.batch_times_s[rank % len(params.batch_times_s)], k=len(spans)))
        for rank in range(params.ranks)
    ]
    ends = [0.0] * (params.run_ahead + 1)  # of the last steps, the oldest first
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
    """One rank's loader: when each batch is the trainer's."""

    def __init__(self, params: SimParams, batch_times_s: Sequence[float]) -> None:
        self._batch_times_s = batch_times_s
        self._workers, self._depth = params.workers, params.workers * params.prefetch
        self._handoff_s, self._background_handoff = params.handoff_s, params.background_handoff
        self._done = [0.0] * params.workers  # the worker's last batch
        self._taken = [0.0] * self._depth  # the batch that made room for the next in this place
        self._handed = 0.0

    def take(self, number: int, trainer_free_s: float) -> float:
        """When batch ``number`` is there for a trainer that asks for it at ``trainer_free_s``."""
        if not self._workers:
            return trainer_free_s + self._batch_times_s[number] + self._handoff_s
        worker, place = number % self._workers, number % self._depth
        issued, done = self._taken[place], self._done[worker]
        made = (issued if issued > done else done) + self._batch_times_s[number]
        self._done[worker] = made
        if self._background_handoff:
            self._handed = made = (made if made > self._handed else self._handed) + self._handoff_s
            taken = made if made > trainer_free_s else trainer_free_s
        else:
            taken = (made if made > trainer_free_s else trainer_free_s) + self._handoff_s
        self._taken[place] = taken
        return taken


@dataclass(frozen=True)
class SimParams:
    """One training with its loader. Times are seconds, of a process that has the core it needs; each is drawn anew from those measured.

    ``batches`` holds a list a rank: how long a worker takes for a batch. ``steps`` are those of all ranks on batches that are there
    already, so the meeting of the ranks is in them.
    """

    ranks: int
    workers: int  # a rank; 0 where the trainer makes its batches itself, between steps
    prefetch: int  # batches a worker keeps ready
    batch_times_s: Sequence[Sequence[float]]
    step_times_s: Sequence[float]
    handoff_s: float = 0.0  # from a worker's end of a batch to the trainer's having it
    background_handoff: bool = False  # a thread hands over while the trainer trains, as the one that pins memory does
    run_ahead: int = 0  # steps that the host may issue before the device has done them
    cores: float | None = None  # of one node; None where nobody lacks any
    ranks_per_node: int = 1
    step_cpu_s: float = 0.0  # seconds of a core that a rank needs for a step: its workers' for a batch, and its trainer's
    storage_s: float = 0.0  # seconds that a node's storage takes for the files of a step, those of all ranks there
