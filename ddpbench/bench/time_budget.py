"""The time of a job of many experiments, on which its ranks agree. Four nouns share the work:

Budget     the seconds that a whole job has left, rounds and experiments together
Brief      how one arm takes its turns: how long its rounds are, what they cost, how many are needed
Pace       how long rounds have taken so far, and when one more would end
Allowance  whether one more round of an arm ends in time, given the Pace and what the Briefs of other arms need

A recipe asks its Budget what is left, sets aside what comes after the rounds (``after_rounds_s``), and shares what is available
among its arms, as a Brief for each. ``rounds_end_s`` turns the same seconds into the end that the Allowance holds every round to.
A run or a sweep has neither Budget nor Briefs: its rounds end with ``--time-limit``.
"""

from __future__ import annotations

from time import perf_counter

from ddpbench.distributed.world import World

MAX_STARTUP_FRACTION = 0.5
"""Starting takes no more than this share of the limit, by this count: a machine that starts slowly is still measured."""

WRAP_UP_S = 4.0
"""Set aside to judge, to print and to end; less where the limit is shorter than usual."""

NO_TIME_LEFT = "no time was left for it"
"""The reason on record for an experiment or an arm that was left out."""


class TimeBudget:
    """``limit_s`` seconds from ``began`` on, a reading of ``perf_counter``, less ``ending_s``.

    Asking is a collective: all ranks ask at the same places.
    """

    def __init__(self, limit_s: float, start: float, world: World, wrap_up_s: float = WRAP_UP_S) -> None:
        self._end = max(start, perf_counter() - MAX_STARTUP_FRACTION * limit_s) + limit_s - wrap_up_s
        self._world = world

    def extend(self, seconds: float) -> None:
        """Moves the end by ``seconds``."""
        self._end += seconds

    def remaining_s(self) -> float:
        """Seconds left on the rank that has least; below 0 once the time is over."""
        return self._world.all_min(self._end - perf_counter())
