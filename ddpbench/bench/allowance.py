"""Whether there is time for one more round of an arm, and still for the rounds that other arms need."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.pace import RoundTimer
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.distributed.world import World


class RoundDeadline:
    """The time for rounds, which ends ``end_s`` seconds after ``pace`` began, or never.

    Asking is a collective: all ranks ask at the same places.
    """

    def __init__(self, end_s: float | None, round_timer: RoundTimer, world: World, round_plans: Sequence[RoundPlan | None]) -> None:
        self._end_s, self._round_timer, self._world = end_s, round_timer, world
        self._reserved_rounds = [brief.reserved_rounds if brief else 0 for brief in round_plans]
        self._park_s = [brief.park_s if brief else 0.0 for brief in round_plans]

    def has_time_for(self, arm: int) -> bool:
        """Whether one more round of that arm ends in time, if it takes as long as ``pace`` foretells.

        The first round of the job always has time: nobody can foretell it.
        """
        if self._end_s is None:
            return True
        if not (end_s := self._round_timer.expected_end_s(arm)):
            return True
        return self._world.all_max(end_s + self._park_time_s(arm) + self._reserved_s(arm) - self._end_s) <= 0

    def _park_time_s(self, arm: int) -> float:
        """Seconds for ``arm`` to leave the device at last, and before it for the arm that is there now."""
        last = self._round_timer.last_arm
        return 0.0 if last is None else sum(self._park_s[each] for each in {arm, last})

    def _missing_rounds(self, arm: int) -> int:
        """How many of the rounds that ``arm`` needs it has not had."""
        return self._reserved_rounds[arm] - self._round_timer.num_rounds(arm)

    def _reserved_s(self, arm: int) -> float:
        """Seconds that a round of ``arm`` must leave for rounds that other arms need.

        An arm that has all it needs leaves time for every such round. One that still lacks some leaves time for the first of each
        arm that has had none. Nothing is reserved for an arm whose next round would not end in time even now.
        """
        reserved_s = 0.0
        for other in range(len(self._reserved_rounds)):
            lacking, takes_s = self._missing_rounds(other), self._round_timer.expected_round_s(other)
            if other == arm or lacking <= 0 or self._round_timer.elapsed_s + takes_s > (self._end_s or 0.0):
                continue
            if self._missing_rounds(arm) <= 0:
                reserved_s += lacking * takes_s
            elif not self._round_timer.num_rounds(other):
                reserved_s += takes_s
        return reserved_s
