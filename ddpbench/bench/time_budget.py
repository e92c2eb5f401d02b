"""Time budget of a job of several experiments, agreed on by all ranks. Four classes share the work:

TimeBudget     the seconds left for a whole job, rounds and experiments together
RoundPlan      how one arm takes its turns: length, cost and required number of its rounds
RoundTimer     how long rounds have taken so far, and when one more would end
RoundDeadline  whether one more round of an arm ends in time, given the RoundTimer and the rounds reserved by other arms' RoundPlans

A JobSpec asks its TimeBudget what is left, reserves time for what comes after the rounds (``after_rounds_s``), and divides the rest
among its arms, one RoundPlan each. ``rounds_end_s`` turns the same seconds into the end that RoundDeadline enforces for every round.
A run or a sweep has neither a TimeBudget nor RoundPlans: its rounds end with ``--time-limit``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from time import perf_counter

from ddpbench.bench.round_plan import RoundPlan
from ddpbench.distributed.world import World

MAX_STARTUP_FRACTION = 0.5
"""Maximum share of the limit charged for startup: a machine that starts slowly is still measured."""

WRAP_UP_S = 4.0
"""Reserved to analyse, print and exit; less if the limit is shorter than usual."""


class TimeBudget:
    """``limit_s`` seconds from ``start``, a ``perf_counter`` reading, minus ``wrap_up_s``.

    ``remaining_s`` is a collective: all ranks must call it at the same places.
    """

    def __init__(self, limit_s: float, start: float, world: World, wrap_up_s: float = WRAP_UP_S) -> None:
        self._end = max(start, perf_counter() - MAX_STARTUP_FRACTION * limit_s) + limit_s - wrap_up_s
        self._world = world

    def extend(self, seconds: float) -> None:
        """Move the end by ``seconds``."""
        self._end += seconds

    def remaining_s(self) -> float:
        """Seconds left on the rank that has the least; negative once the time is over."""
        return self._world.all_min(self._end - perf_counter())


class RoundDeadline:
    """Deadline for rounds, ``end_s`` seconds after ``round_timer`` started; None for no deadline.

    ``has_time_for`` is a collective: all ranks must call it at the same places.
    """

    def __init__(self, end_s: float | None, round_timer: RoundTimer, world: World, round_plans: Sequence[RoundPlan | None]) -> None:
        self._end_s, self._round_timer, self._world = end_s, round_timer, world
        self._reserved_rounds = [round_plan.reserved_rounds if round_plan else 0 for round_plan in round_plans]
        self._park_s = [round_plan.park_s if round_plan else 0.0 for round_plan in round_plans]

    def has_time_for(self, arm: int) -> bool:
        """Whether one more round of that arm ends in time, by the estimate of the RoundTimer.

        Always True for the first round of the job, for which there is no estimate.
        """
        if self._end_s is None:
            return True
        if not (end_s := self._round_timer.expected_end_s(arm)):
            return True
        return self._world.all_max(end_s + self._park_time_s(arm) + self._reserved_s(arm) - self._end_s) <= 0

    def _park_time_s(self, arm: int) -> float:
        """Seconds to park ``arm`` in the end, and before it the arm that is on the device now."""
        last = self._round_timer.last_arm
        return 0.0 if last is None else sum(self._park_s[index] for index in {arm, last})

    def _missing_rounds(self, arm: int) -> int:
        """Required rounds of ``arm`` that have not run yet."""
        return self._reserved_rounds[arm] - self._round_timer.num_rounds(arm)

    def _reserved_s(self, arm: int) -> float:
        """Seconds that a round of ``arm`` must leave for the required rounds of other arms.

        An arm that has all its required rounds leaves time for every missing one. An arm that lacks some leaves time for the first
        round of each arm that has had none. Nothing is reserved for an arm whose next round would not end in time even now.
        """
        reserved_s = 0.0
        for other in range(len(self._reserved_rounds)):
            missing, round_s = self._missing_rounds(other), self._round_timer.expected_round_s(other)
            if other == arm or missing <= 0 or self._round_timer.elapsed_s + round_s > (self._end_s or 0.0):
                continue
            if self._missing_rounds(arm) <= 0:
                reserved_s += missing * round_s
            elif not self._round_timer.num_rounds(other):
                reserved_s += round_s
        return reserved_s


class RoundTimer:
    """Duration of each arm's last round, counted from the end of the previous round.

    The very first round has no previous one. In a job of one arm it is left out, because it includes the warm-up, which happens once.
    With several arms, each warms up when its turn begins: ``start_rounds`` sets the start of the first round, and a round that begins
    a turn is timed separately from one that continues it.
    """

    def __init__(self) -> None:
        self._start = perf_counter()
        self._last_end: float | None = None
        self.last_arm: int | None = None
        self._last_round_s: dict[int, float] = {}
        self._activating_round_s: dict[int, float] = {}
        self._first_round_s: dict[int, float] = {}
        self._later_rounds_s: dict[int, list[float]] = {}
        self._expected_s: Mapping[int, float] = {}
        self._round_counts: Counter[int] = Counter()
        self._turn_counts: Counter[int] = Counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this timer was created."""
        return perf_counter() - self._start

    def num_rounds(self, arm: int) -> int:
        """Rounds of ``arm`` that have ended."""
        return self._round_counts[arm]

    def start_rounds(self, expected_s: Mapping[int, float] | None = None) -> None:
        """Start counting rounds. ``expected_s`` gives, per arm, the seconds of its first round including activation, if known."""
        self._last_end, self._expected_s = perf_counter(), expected_s or {}

    def leave_out(self, seconds: float) -> None:
        """Count ``seconds`` that have passed since the last round, or the start of the first, for no round."""
        if self._last_end is not None:
            self._last_end += seconds

    def round_ended(self, arm: int) -> None:
        now = perf_counter()
        if self._last_end is not None:
            self._last_round_s[arm] = now - self._last_end
            if arm != self.last_arm:
                self._activating_round_s[arm] = now - self._last_end
                self._turn_counts[arm] += 1
            self._first_round_s.setdefault(arm, now - self._last_end)
            if self._round_counts[arm]:
                self._later_rounds_s.setdefault(arm, []).append(now - self._last_end)
        self._last_end, self.last_arm = now, arm
        self._round_counts[arm] += 1

    def remaining_s(self, arms: Sequence[int]) -> float | None:
        """Seconds for one more round of each of ``arms`` together, by the mean of their rounds.

        None if one of them has had none but its first, which includes its warm-up.
        """
        if any(arm not in self._later_rounds_s for arm in arms):
            return None
        return sum(fmean(self._later_rounds_s[arm]) for arm in arms)

    def expected_round_s(self, arm: int) -> float:
        """Estimated seconds of the next round of ``arm``: its last round, else the expected time, else the mean of the other arms.

        If other arms took longer than expected, the expected time is scaled up likewise. The first arm of a job counts for this only
        while there is no other, and its own first turn only as an upper bound: loading drivers and cuDNN's trials of every algorithm
        happen once.
        """
        known_s = self._last_round_s if arm == self.last_arm else self._last_round_s | self._activating_round_s
        expected_s = self._scaled_expectation_s(arm)
        if arm in known_s:
            return min(known_s[arm], expected_s) if expected_s and self._includes_one_time_costs(arm) else known_s[arm]
        return expected_s or (fmean(known_s.values()) if known_s else self.elapsed_s)

    def _scaled_expectation_s(self, arm: int) -> float:
        """Expected seconds of the first round of ``arm``, scaled by how much longer than expected others took; 0 without expectation."""
        ratios = [took_s / expected_s for other, took_s in self._first_round_s.items() if (expected_s := self._expected_s.get(other))]
        return self._expected_s.get(arm, 0.0) * max(1.0, fmean(ratios[1:] or ratios or [1.0]))

    def _includes_one_time_costs(self, arm: int) -> bool:
        """Whether ``arm`` began the job, was parked for another arm, and has not returned since."""
        return arm != self.last_arm and self._turn_counts[arm] == 1 and arm == next(iter(self._first_round_s))

    def expected_end_s(self, arm: int) -> float:
        """Seconds from the start to the end of the next round of ``arm``; 0 before the first round, which cannot be estimated."""
        return self.elapsed_s + self.expected_round_s(arm) if self._round_counts else 0.0
