"""How fast rounds come: what is left of a job, and whether one more round fits its time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from time import perf_counter


class Pace:
    """How long the last round of each arm took, from the end of the round before.

    What came before the very first, warm-up above all, comes once and is left out.
    """

    def __init__(self) -> None:
        self._begin = perf_counter()
        self._last_end: float | None = None
        self._took_s: dict[int, float] = {}

    def round_ended(self, arm: int) -> None:
        now = perf_counter()
        if self._last_end is not None:
            self._took_s[arm] = now - self._last_end
        self._last_end = now

    def seconds_left(self, arms: Sequence[int]) -> float | None:
        """Seconds that one more round of each of ``arms`` takes together; ``None`` before two rounds have ended."""
        if not self._took_s:
            return None
        usual_s = fmean(self._took_s.values())
        return sum(self._took_s.get(arm, usual_s) for arm in arms)

    def end_of_next_s(self, arm: int) -> float:
        """Seconds from the beginning to the end of a next round of ``arm``; 0 before the first, which nobody can foretell."""
        if self._last_end is None:
            return 0.0
        spent_s = perf_counter() - self._begin
        return spent_s + (self.seconds_left([arm]) or spent_s)
