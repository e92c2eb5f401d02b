"""Whether there is time for one more round of an arm, beside those that others need more."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.experiments.brief import Brief
from ddpbench.experiments.pace import Pace
from ddpbench.machine.world import World


class Allowance:
    """The time of a job, which ends ``end_s`` seconds after its beginning, or never. Every rank asks at the same places."""

    def __init__(self, end_s: float | None, pace: Pace, world: World, briefs: Sequence[Brief | None]) -> None:
        self._end_s, self.pace, self._world = end_s, pace, world
        self._needed = [brief.needed if brief else 0 for brief in briefs]
        self._leaving_s = [brief.leaving_s if brief else 0.0 for brief in briefs]

    def has_time_for(self, arm: int) -> bool:
        """Whether one more round of that arm, of its usual length, ends in time. The very first does, always."""
        if self._end_s is None:
            return True
        if not (end_s := self.pace.end_of_next_s(arm)):
            return True
        return self._world.most(end_s + self._leaving_of_s(arm) + self._kept_s(arm) - self._end_s) <= 0

    def _leaving_of_s(self, arm: int) -> float:
        """What it takes to end the turn of ``arm``, and the one before it."""
        last = self.pace.last_arm
        return sum(self._leaving_s[each] for each in {arm, last} if each is not None) if last is not None else 0.0

    def _lacking(self, arm: int) -> int:
        return self._needed[arm] - self.pace.rounds_of(arm)

    def _kept_s(self, arm: int) -> float:
        """For rounds of others that are needed, as far as they can still be had; where those of ``arm`` are too, for the first of each."""
        kept_s = 0.0
        for other in range(len(self._needed)):
            lacking, takes_s = self._lacking(other), self.pace.takes_s(other)
            if other == arm or lacking <= 0 or self.pace.spent_s + takes_s > (self._end_s or 0.0):
                continue
            if self._lacking(arm) <= 0:
                kept_s += lacking * takes_s
            elif not self.pace.rounds_of(other):
                kept_s += takes_s
        return kept_s
