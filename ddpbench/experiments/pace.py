"""How fast rounds come: what is left of a job, and whether one more round fits its time."""

from __future__ import annotations

from time import perf_counter


class Pace:
    """The time between the ends of rounds. What came before the first, warm-up above all, comes once and is left out."""

    def __init__(self) -> None:
        self._begin = perf_counter()
        self._ends: list[float] = []

    def round_ended(self) -> None:
        self._ends.append(perf_counter())

    def seconds_left(self, rounds: int) -> float | None:
        """Seconds that so many more rounds take; ``None`` before two have ended."""
        if len(self._ends) < 2:
            return None
        return rounds * (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)

    def end_of_next_s(self) -> float:
        """Seconds from the beginning to the end of the next round; 0 before the first, which nobody can foretell."""
        if not self._ends:
            return 0.0
        spent_s = perf_counter() - self._begin
        return spent_s + (self.seconds_left(1) or spent_s)
