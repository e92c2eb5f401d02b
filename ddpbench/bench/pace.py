"""How fast rounds come: what is left of a job, and when one more round would end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from time import perf_counter


class RoundTimer:
    """How long the last round of each arm took, counted from the end of the round before it.

    The very first round has none before it. Of one arm it is left out, for it holds the warm-up, which comes once. Of several arms each
    warms up when its turn begins: there ``rounds_begin`` says from when the first counts, and a round that begins a turn is kept apart
    from one that goes on with it.
    """

    def __init__(self) -> None:
        self._start = perf_counter()
        self._last_end: float | None = None
        self.last_arm: int | None = None
        self._last_round_s: dict[int, float] = {}
        self._activating_round_s: dict[int, float] = {}
        self._first_round_s: dict[int, float] = {}
        self._expected_s: Mapping[int, float] = {}
        self._round_counts: Counter[int] = Counter()
        self._turn_counts: Counter[int] = Counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return perf_counter() - self._start

    def num_rounds(self, arm: int) -> int:
        """How many have ended."""
        return self._round_counts[arm]

    def start_rounds(self, expected_s: Mapping[int, float] | None = None) -> None:
        """From now on rounds count. ``expected_s`` is what the first round of an arm takes with all before it, where that is known."""
        self._last_end, self._expected_s = perf_counter(), expected_s or {}

    def round_ended(self, arm: int) -> None:
        now = perf_counter()
        if self._last_end is not None:
            self._last_round_s[arm] = now - self._last_end
            if arm != self.last_arm:
                self._activating_round_s[arm] = now - self._last_end
                self._turn_counts[arm] += 1
            self._first_round_s.setdefault(arm, now - self._last_end)
        self._last_end, self.last_arm = now, arm
        self._round_counts[arm] += 1

    def one_round_each_s(self, arms: Sequence[int]) -> float | None:
        """Seconds that one more round of each of ``arms`` takes together; ``None`` before two rounds have ended."""
        if not self._last_round_s:
            return None
        usual_s = fmean(self._last_round_s.values())
        return sum(self._last_round_s.get(arm, usual_s) for arm in arms)

    def remaining_s(self, end_s: float | None, arms: Sequence[int]) -> float | None:
        """The same, and no more than there are until ``end_s`` seconds after the beginning."""
        left_s = self.one_round_each_s(arms)
        return left_s if left_s is None or end_s is None else min(left_s, max(0.0, end_s - self.elapsed_s))

    def expected_round_s(self, arm: int) -> float:
        """Seconds that a next round of ``arm`` takes: as its last, else as expected, else as those of the others.

        Where the others took longer than was expected of them, so will this one. The first arm of a job tells that only while there is no
        other, and of itself only that it will not take longer: drivers that load and cuDNN's trials of every algorithm come once.
        """
        known_s = self._last_round_s if arm == self.last_arm else self._last_round_s | self._activating_round_s
        expected_s = self._scaled_expectation_s(arm)
        if arm in known_s:
            return min(known_s[arm], expected_s) if expected_s and self._includes_one_time_costs(arm) else known_s[arm]
        return expected_s or (fmean(known_s.values()) if known_s else self.elapsed_s)

    def _scaled_expectation_s(self, arm: int) -> float:
        """Seconds of its first round, if it takes as many times what is expected as other arms took; 0 where nothing is expected."""
        times = [took_s / expected_s for other, took_s in self._first_round_s.items() if (expected_s := self._expected_s.get(other))]
        return self._expected_s.get(arm, 0.0) * max(1.0, fmean(times[1:] or times or [1.0]))

    def _includes_one_time_costs(self, arm: int) -> bool:
        """Whether ``arm`` began the job, has made way for another, and has not come back since."""
        return arm != self.last_arm and self._turn_counts[arm] == 1 and arm == next(iter(self._first_round_s))

    def expected_end_s(self, arm: int) -> float:
        """Seconds from the beginning to the end of a next round of ``arm``; 0 before the first, which nobody can foretell."""
        return self.elapsed_s + self.expected_round_s(arm) if self._round_counts else 0.0
