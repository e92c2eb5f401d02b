"""The time of a diagnosis: from when it is counted, and how it is shared out."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

import pytest
from training import world_of_one

from ddpbench.analysis.cures import DIAGNOSIS_S
from ddpbench.experiments.budget import Budget
from ddpbench.experiments.diagnose.course import Course, share_of
from ddpbench.experiments.diagnose.scene import Scene
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import BESIDE, DEVICE, NO_SYNC, REAL, REPLAY

LABELS = [REAL, DEVICE, BESIDE, REPLAY, NO_SYNC]


def test_what_was_before_the_ranks_met_counts() -> None:
    world, now = world_of_one(), perf_counter()
    assert Budget(120.0, now - 20, world, ending_s=4.0).left_s() == pytest.approx(96.0, abs=0.5)
    assert Budget(120.0, now - 500, world, ending_s=0.0).left_s() == pytest.approx(60.0, abs=0.5), "half of it is left in any case"


def test_time_may_be_added() -> None:
    budget = Budget(60.0, perf_counter(), world_of_one(), ending_s=0.0)
    budget.extend(20.0)
    assert budget.left_s() == pytest.approx(80.0, abs=0.5)


@dataclass
class Ground:
    """As much of a job as a course asks for before its rounds."""

    world: Any
    began: float


def course(batch_s: float, workers: int = 8, limit_s: float | None = None) -> Course:
    """One whose loader was seen to take that long for a batch, 40 s after the command began."""
    laid_out, world = Course(limit_s, LABELS), world_of_one()
    config = Config(workload="resnet50", batch_size=256, workers=workers)
    laid_out._budget = Budget(limit_s or DIAGNOSIS_S, perf_counter() - 40, world)
    laid_out._scene = Scene(Ground(world, 0.0), config, laid_out.openers, 2.0, batch_s)  # type: ignore[arg-type]
    laid_out._after_s = 20.0
    return laid_out


def test_a_fast_loader_leaves_time_for_turns_in_order() -> None:
    laid_out = course(batch_s=0.05)
    assert {label: laid_out.brief(label).at_once for label in LABELS} == dict.fromkeys(LABELS, 1)
    assert laid_out.brief(REAL).needed == 3
    assert laid_out.openers.batches == 16
    assert laid_out.brief(REAL).steps(0.05, 8) == 32


def test_rounds_of_a_slow_loader_come_at_once_and_are_short() -> None:
    laid_out = course(batch_s=256 / 8 / 75)
    real, replay = laid_out.brief(REAL), laid_out.brief(REPLAY)
    assert (real.at_once, real.steps(0.0, 8)) == (3, 8)
    assert 3 * 8 * real.step_s + real.first_s < 56
    assert replay.first_s < 16


def test_fewer_batches_are_replayed_where_they_take_long_to_read_and_none_where_too_long() -> None:
    laid_out = course(batch_s=2.0, workers=1)
    assert laid_out.brief(REPLAY).first_s < inf
    assert laid_out.openers.batches == 6
    assert course(batch_s=7.0, workers=1).brief(REPLAY).first_s == inf
    assert course(batch_s=2.0, workers=8).brief(REPLAY).first_s == inf, "the first of them takes 16 s"


def test_a_round_of_a_very_slow_loader_is_shortened() -> None:
    assert course(batch_s=30.0, workers=1).brief(REAL).steps(0.0, 1) == 1


def test_a_longer_limit_gives_longer_rounds_and_leaves_time_for_more() -> None:
    usual, longer = (course(0.05, limit_s=limit_s).brief(REAL).round_s for limit_s in (DIAGNOSIS_S, 4 * DIAGNOSIS_S))
    assert longer == 2 * usual
    assert [share_of(share * DIAGNOSIS_S) for share in (0.5, 1, 4)] == [0.5, 1, 2]
