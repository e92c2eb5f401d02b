"""Interleaving of arms: order, deadline and round lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from training import world_of_one

from ddpbench.bench import time_budget as pace_module
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.bench.scheduler import abba_schedule, interleave
from ddpbench.bench.time_budget import RoundDeadline, RoundTimer
from ddpbench.record.config import Config


def test_every_second_round_runs_in_reverse_order() -> None:
    assert list(abba_schedule([2, 3])) == [(0, 0), (1, 0), (1, 1), (0, 1), (1, 2)]


def test_first_turn_of_an_arm_may_have_several_rounds() -> None:
    order = list(abba_schedule([4, 2], {0: 3}))
    assert order == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 3)]
    assert list(abba_schedule([1, 1], {0: 3})) == [(0, 0), (1, 0)], "no more rounds than it has"


@dataclass
class Turns:
    """An arm that takes ``costs_s`` seconds per round on a fake clock, plus one second for each activation."""

    clock: list[float]
    costs_s: float
    rounds: int = 5
    is_finished: bool = False
    completed_rounds: frozenset[int] = frozenset()
    had: list[int] = field(default_factory=list)
    here: bool = False

    @property
    def config(self) -> Config:
        return Config(workload="resnet18", rounds=self.rounds)

    def activate(self) -> None:
        self.clock[0] += 0 if self.here else 1
        self.here = True

    def park(self) -> None:
        self.here = False

    def run_round(self, index: int) -> None:
        self.clock[0] += self.costs_s
        self.had.append(index)


def take_turns(
    monkeypatch: pytest.MonkeyPatch, end_s: float, costs_s: list[float], briefs: list[RoundPlan | None], even: bool = False
) -> list[list[int]]:
    """Round indices per arm, and the end time."""
    clock = [0.0]
    monkeypatch.setattr(pace_module, "perf_counter", lambda: clock[0])
    arms, pace = [Turns(clock, cost_s) for cost_s in costs_s], RoundTimer()
    allowance = RoundDeadline(end_s, pace, world_of_one(), briefs)
    pace.start_rounds({index: brief.first_round_s for index, brief in enumerate(briefs) if brief})
    at_once = {index: brief.first_turn_rounds for index, brief in enumerate(briefs) if brief}
    for index, _ in interleave(arms, allowance.has_time_for, at_once, even):  # type: ignore[arg-type]
        pace.round_ended(index)
    return [*(arm.had for arm in arms), [round(clock[0])]]


def test_arm_that_does_not_fit_is_skipped_and_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast, end = take_turns(monkeypatch, 42.0, [19.0, 1.0], [None, None])
    assert slow == [0]
    assert fast == [0, 1, 2, 3, 4]
    assert end <= [42]


def test_even_schedule_keeps_round_counts_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    costs_s: list[float] = [3.0, 1.0, 9.0]
    for end_s in range(17, 95):
        *had, [over] = take_turns(monkeypatch, end_s, costs_s, [None] * 3, even=True)
        counts = [len(rounds) for rounds in had]
        assert max(counts) - min(counts) <= 1, end_s
        assert over <= end_s
        assert had == [list(range(count)) for count in counts]
    uneven = [len(rounds) for rounds in take_turns(monkeypatch, 40.0, costs_s, [None] * 3)[:3]]
    assert max(uneven) - min(uneven) > 1


def test_arm_that_never_starts_does_not_block_an_even_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    briefs: list[RoundPlan | None] = [
        RoundPlan(1.0, 1.0, first_round_s=2.0),
        RoundPlan(1.0, 1.0, first_round_s=2.0),
        RoundPlan(1.0, 1.0, first_round_s=inf),
    ]
    assert take_turns(monkeypatch, 60.0, [1.0, 1.0, 1.0], briefs, even=True)[:3] == [[0, 1, 2, 3, 4]] * 2 + [[]]


def test_time_is_reserved_for_required_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    briefs: list[RoundPlan | None] = [
        RoundPlan(1.0, 1.0, reserved_rounds=3, first_round_s=8.0),
        RoundPlan(1.0, 1.0, reserved_rounds=1, first_round_s=4.0),
        RoundPlan(1.0, 1.0, first_round_s=4.0),
    ]
    real, device, other, end = take_turns(monkeypatch, 35.0, [7.0, 3.0, 3.0], briefs)
    assert real == [0, 1, 2]
    assert device[0] == 0
    assert 1 not in other, "its time was reserved for another arm"
    assert end <= [35]
    assert take_turns(monkeypatch, 35.0, [7.0, 3.0, 3.0], [None] * 3)[0] == [0, 1], "no time is reserved"


def test_reserved_time_that_is_insufficient_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    briefs: list[RoundPlan | None] = [RoundPlan(1.0, 1.0, reserved_rounds=3, first_round_s=8.0), RoundPlan(1.0, 1.0, first_round_s=2.0)]
    real, other, end = take_turns(monkeypatch, 29.0, [19.0, 1.0], briefs)
    assert (real, other) == ([0], [0, 1, 2, 3, 4])
    assert end <= [29]


def test_first_arm_always_runs_and_arm_of_infinite_cost_never(monkeypatch: pytest.MonkeyPatch) -> None:
    briefs: list[RoundPlan | None] = [RoundPlan(1.0, 1.0, reserved_rounds=3, first_round_s=4.0), RoundPlan(1.0, 1.0, first_round_s=inf)]
    assert take_turns(monkeypatch, 0.0, [50.0, 1.0], briefs)[:2] == [[0], []]
    assert take_turns(monkeypatch, 500.0, [5.0, 1.0], briefs)[:2] == [[0, 1, 2, 3, 4], []]


def test_slower_than_expected_device_applies_to_all_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    briefs: list[RoundPlan | None] = [
        RoundPlan(1.0, 1.0, reserved_rounds=3, first_round_s=5.0),
        RoundPlan(1.0, 1.0, reserved_rounds=1, first_round_s=5.0),
    ]
    real, device, end = take_turns(monkeypatch, 100.0, [80.0, 80.0], briefs)
    assert (real, device) == ([0], [])
    assert end == [81]


def test_arm_starts_later_if_reserved_time_becomes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    briefs: list[RoundPlan | None] = [
        RoundPlan(1.0, 1.0, reserved_rounds=1, first_round_s=4.0),
        RoundPlan(1.0, 1.0, first_round_s=3.0),
        RoundPlan(1.0, 1.0, reserved_rounds=1, first_round_s=18.0),
    ]
    real, other, device, end = take_turns(monkeypatch, 24.0, [3.0, 1.0, 2.0], briefs)
    assert real[0] == device[0] == 0
    assert other[0] == 1, "by then the device is known to be fast"
    assert end <= [24]


def test_parking_time_counts_towards_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    briefs: list[RoundPlan | None] = [RoundPlan(1.0, 1.0, first_round_s=2.0), RoundPlan(1.0, 1.0, first_round_s=2.0, park_s=5.0)]
    assert take_turns(monkeypatch, 8.0, [1.0, 1.0], briefs)[1] == []
    assert take_turns(monkeypatch, 9.0, [1.0, 1.0], briefs)[1] == [0]


@pytest.mark.parametrize(
    ("step_s", "workers", "longest_s", "steps"),
    [
        (0.05, 0, 20.0, 30),
        (0.05, 8, 20.0, 32),
        (0.05, 16, 20.0, 64),
        (0.06, 3, 20.0, 24),
        (0.4, 8, 20.0, 8),
        (0.4, 1, 20.0, 4),
        (3.4, 1, 15.0, 4),
        (3.4, 1, 8.0, 2),
        (20.0, 8, 15.0, 1),
    ],
)
def test_round_spans_several_batches_per_worker_if_time_allows(step_s: float, workers: int, longest_s: float, steps: int) -> None:
    assert RoundPlan(1.5, 3.0, max_round_s=longest_s).steps_per_round(step_s, workers) == steps
    assert RoundPlan(1.5, 3.0, min_step_s=step_s, max_round_s=longest_s).steps_per_round(0.0, workers) == steps, "from the loader benchmark"
