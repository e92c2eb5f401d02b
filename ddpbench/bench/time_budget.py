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

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from time import perf_counter

from ddpbench.bench.round_plan import RoundPlan
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
