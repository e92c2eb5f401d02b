"""How a training goes, by recurrence: no event queue is needed, since every time is the later of a few earlier ones, and a span.

Batch i goes to worker i mod W. It is issued when batch i - W * prefetch is taken, begun when its worker is done with batch i - W,
and taken in its turn. A step begins when every rank has its batch: the ranks meet at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ddpbench.analysis.simulation.params import Setting


@dataclass(frozen=True)
class Simulated:
    """The mean of a step in seconds, and the share of it in which no rank can go on for want of a batch."""

    step: float
    waiting: float


def run(setting: Setting, steps: int, chance: Random) -> Simulated:
    """The course of so many steps, counted once the batches that were made ahead of the first are used up.

    A step lasts at least as long as the cores need for its work, and the storage for its files.
    """
    free = _with_free_cores(setting, steps, chance)
    least = max(shortest_by_cores(setting), setting.storage)
    return free if free.step >= least else Simulated(least, max(0.0, 1 - (1 - free.waiting) * free.step / least))


def shortest_by_cores(setting: Setting) -> float:
    """Seconds of a step that keeps every core busy all the time: they take turns, and none of their time is lost."""
    return setting.ranks_a_node * setting.work / setting.cores if setting.cores else 0.0


def _with_free_cores(setting: Setting, steps: int, chance: Random) -> Simulated:
    depth = setting.workers * setting.prefetch
    spans = chance.choices(setting.steps, k=steps + depth)
    ready = [_Rank(setting, chance.choices(setting.batches[rank % len(setting.batches)], k=len(spans))) for rank in range(setting.ranks)]
    ends = [0.0] * (setting.ahead + 1)  # of the last steps, the oldest first
    began, waited = 0.0, 0.0
    for number, span in enumerate(spans):
        if number == depth:
            began, waited = ends[-1], 0.0
        host_free, device_free = ends[0], ends[-1]
        start = max(device_free, *[rank.take(number, host_free) for rank in ready])
        waited += start - device_free
        ends = [*ends[1:], start + span]
    return Simulated((ends[-1] - began) / steps, waited / (ends[-1] - began))


class _Rank:
    """One rank's loader: when each batch is the trainer's."""

    def __init__(self, setting: Setting, spans: Sequence[float]) -> None:
        self._spans = spans
        self._workers, self._depth = setting.workers, setting.workers * setting.prefetch
        self._hand_over, self._beside = setting.hand_over, setting.beside
        self._done = [0.0] * setting.workers  # the worker's last batch
        self._taken = [0.0] * self._depth  # the batch that made room for the next in this place
        self._handed = 0.0

    def take(self, number: int, free: float) -> float:
        """When batch ``number`` is there for a trainer that asks for it at ``free``."""
        if not self._workers:
            return free + self._spans[number] + self._hand_over
        worker, place = number % self._workers, number % self._depth
        issued, done = self._taken[place], self._done[worker]
        made = (issued if issued > done else done) + self._spans[number]
        self._done[worker] = made
        if self._beside:
            self._handed = made = (made if made > self._handed else self._handed) + self._hand_over
            taken = made if made > free else free
        else:
            taken = (made if made > free else free) + self._hand_over
        self._taken[place] = taken
        return taken
