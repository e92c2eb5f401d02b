"""Whether there is time for one more round of an arm, and still for the rounds that other arms need."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.pace import Pace
from ddpbench.bench.round_plan import Brief
from ddpbench.distributed.world import World


class Allowance:
    """The time for rounds, which ends ``end_s`` seconds after ``pace`` began, or never.

    Asking is a collective: all ranks ask at the same places.
    """

    def __init__(self, end_s: float | None, pace: Pace, world: World, briefs: Sequence[Brief | None]) -> None:
        self._end_s, self._pace, self._world = end_s, pace, world
        self._needed = [brief.needed if brief else 0 for brief in briefs]
        self._leaving_s = [brief.leaving_s if brief else 0.0 for brief in briefs]

    def has_time_for(self, arm: int) -> bool:
        """Whether one more round of that arm ends in time, if it takes as long as ``pace`` foretells.

        The first round of the job always has time: nobody can foretell it.
        """
        if self._end_s is None:
            return True
        if not (end_s := self._pace.end_of_next_s(arm)):
            return True
        return self._world.most(end_s + self._leaving_of_s(arm) + self._reserved_s(arm) - self._end_s) <= 0

    def _leaving_of_s(self, arm: int) -> float:
        """Seconds for ``arm`` to leave the device at last, and before it for the arm that is there now."""
        last = self._pace.last_arm
        return 0.0 if last is None else sum(self._leaving_s[each] for each in {arm, last})

    def _lacking(self, arm: int) -> int:
        """How many of the rounds that ``arm`` needs it has not had."""
        return self._needed[arm] - self._pace.rounds_of(arm)

    def _reserved_s(self, arm: int) -> float:
        """Seconds that a round of ``arm`` must leave for rounds that other arms need.

        An arm that has all it needs leaves time for every such round. One that still lacks some leaves time for the first of each
        arm that has had none. Nothing is reserved for an arm whose next round would not end in time even now.
        """
        reserved_s = 0.0
        for other in range(len(self._needed)):
            lacking, takes_s = self._lacking(other), self._pace.takes_s(other)
            if other == arm or lacking <= 0 or self._pace.spent_s + takes_s > (self._end_s or 0.0):
                continue
            if self._lacking(arm) <= 0:
                reserved_s += lacking * takes_s
            elif not self._pace.rounds_of(other):
                reserved_s += takes_s
        return reserved_s
