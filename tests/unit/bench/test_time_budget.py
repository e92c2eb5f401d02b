"""Time budget of a diagnosis."""

from __future__ import annotations

from math import inf
from time import perf_counter

import pytest
from training import world_of_one

from ddpbench.analysis.remedies.training_rules import DIAGNOSIS_S
from ddpbench.bench.diagnose.context import DiagnosisContext
from ddpbench.bench.diagnose.loaders import LoaderFactories
from ddpbench.bench.diagnose.round_plans import diagnose_round_plan, replay_batch_count, time_scale
from ddpbench.bench.resolve import resolve_config
from ddpbench.bench.time_budget import RoundTimer, TimeBudget
from ddpbench.record.config import Config
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, INDEPENDENT, LOADER_IN_BACKGROUND, REPLAY

ROLES = [BASELINE, COMPUTE_ONLY, LOADER_IN_BACKGROUND, REPLAY, INDEPENDENT]
LIMIT_S, AVAILABLE_S = DIAGNOSIS_S, 56.0
"""Total time, and the time left for rounds after 40 s of start-up."""


def test_time_before_rendezvous_counts() -> None:
    world, now = world_of_one(), perf_counter()
    assert TimeBudget(120.0, now - 20, world, wrap_up_s=4.0).remaining_s() == pytest.approx(96.0, abs=0.5)
    assert TimeBudget(120.0, now - 500, world, wrap_up_s=0.0).remaining_s() == pytest.approx(60.0, abs=0.5), "at least half of it remains"


def test_budget_can_be_extended() -> None:
    budget = TimeBudget(60.0, perf_counter(), world_of_one(), wrap_up_s=0.0)
    budget.extend(20.0)
    assert budget.remaining_s() == pytest.approx(80.0, abs=0.5)


def test_time_that_is_left_out_counts_for_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("ddpbench.bench.time_budget.perf_counter", lambda: now_s)
    timer = RoundTimer()
    timer.start_rounds({0: 2.0, 1: 2.0})
    now_s = 105.0
    timer.leave_out(3.0)
    timer.round_ended(0)
    assert (timer.expected_round_s(0), timer.expected_round_s(1)) == (2.0, 2.0)
    assert timer.elapsed_s == 5.0


def seen(batch_s: float, workers: int = 8) -> DiagnosisContext:
    """A diagnosis with a measured time per batch."""
    config = resolve_config(Config(workload="resnet50", workers=workers), True, 1)
    return DiagnosisContext(None, Config(workload="resnet50"), config, LoaderFactories(), 2.0, batch_s)  # type: ignore[arg-type]


def test_fast_loader_gets_interleaved_single_rounds() -> None:
    scene = seen(batch_s=0.05)
    briefs = {role: diagnose_round_plan(role, scene, LIMIT_S, AVAILABLE_S) for role in ROLES}
    assert {role: each.first_turn_rounds for role, each in briefs.items()} == dict.fromkeys(ROLES, 1)
    assert briefs[BASELINE].reserved_rounds == 3
    assert replay_batch_count(scene) == 16
    assert briefs[BASELINE].steps_per_round(0.05, 8) == 32


def test_slow_loader_gets_consecutive_short_rounds() -> None:
    scene = seen(batch_s=256 / 8 / 75)
    real, replay = (diagnose_round_plan(role, scene, LIMIT_S, AVAILABLE_S) for role in (BASELINE, REPLAY))
    assert (real.first_turn_rounds, real.steps_per_round(0.0, 8)) == (3, 8)
    assert 3 * 8 * real.min_step_s + real.first_round_s < AVAILABLE_S
    assert replay.first_round_s < 8, "its batches were kept earlier"


def test_replayed_batches_are_fewer_for_slow_loaders() -> None:
    slow = seen(batch_s=2.0, workers=1)
    assert replay_batch_count(slow) == 3
    assert replay_batch_count(seen(batch_s=0.0)) == 0, "the loader was not measured"
    assert diagnose_round_plan(REPLAY, slow, LIMIT_S, AVAILABLE_S).first_round_s < inf
    assert diagnose_round_plan(REPLAY, seen(batch_s=3.5, workers=1), LIMIT_S, AVAILABLE_S).first_round_s == inf
    assert diagnose_round_plan(REPLAY, seen(batch_s=1.0, workers=8), LIMIT_S, AVAILABLE_S).first_round_s == inf, (
        "the first of them may take 8 s"
    )


def test_round_of_a_very_slow_loader_is_shortened() -> None:
    assert diagnose_round_plan(BASELINE, seen(batch_s=30.0, workers=1), LIMIT_S, AVAILABLE_S).steps_per_round(0.0, 1) == 1


def test_longer_limit_gives_longer_rounds() -> None:
    usual, longer = (diagnose_round_plan(BASELINE, seen(0.05), limit_s, AVAILABLE_S).round_s for limit_s in (LIMIT_S, 4 * LIMIT_S))
    assert longer == 2 * usual
    assert [time_scale(share * LIMIT_S) for share in (0.5, 1, 4)] == [0.5, 1, 2]
