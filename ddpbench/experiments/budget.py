"""The time of a job of many experiments, on which its ranks agree."""

from __future__ import annotations

from time import perf_counter

from ddpbench.machine.world import World

MOST_TO_START = 0.5
"""The share of the time that counts for starting, at most: a machine that starts slowly is still to be measured."""

ENDING_S = 4.0
"""To judge, to print and to end; in a shorter limit than usual less."""

NO_TIME = "no time was left for it"
"""Why something was left out."""


class Budget:
    """``limit_s`` seconds from ``began`` on, a reading of ``perf_counter``, less ``ending_s``. Every rank asks at the same places."""

    def __init__(self, limit_s: float, began: float, world: World, ending_s: float = ENDING_S) -> None:
        self._end = max(began, perf_counter() - MOST_TO_START * limit_s) + limit_s - ending_s
        self._world = world

    def extend(self, seconds: float) -> None:
        """So many seconds more."""
        self._end += seconds

    def left_s(self) -> float:
        """Seconds that are left on every rank; below 0 where it is over."""
        return self._world.least(self._end - perf_counter())
