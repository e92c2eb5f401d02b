"""Comparison of arms: paired rounds, and arms without a figure."""

from __future__ import annotations

from typing import Any

import pytest
import records

from ddpbench.analysis.compare import ArmRow, compare
from ddpbench.analysis.judge import judge
from ddpbench.analysis.stats import PairedRatio
from ddpbench.record.record import Fault, Record


def arm(step_factor: float = 1.0, longer: tuple[float, ...] = records.STEADY, **changes: Any) -> Record:
    record = records.record(longer=[step_factor * each for each in longer], **changes)
    judge(record)
    return record


def second(*arms: Record) -> ArmRow:
    return compare(arms)[1]


def speedup_of(row: ArmRow) -> PairedRatio:
    assert row.speedup is not None
    return row.speedup


def test_first_arm_is_the_baseline() -> None:
    row = compare([arm(), arm(0.5)])[0]
    assert (row.speedup, row.state, row.rounds_differ) == (PairedRatio(1, 1, 1, 5), "", False)
    assert row.samples_per_s == pytest.approx(1024 / 0.0444)
    assert row.interval is not None
    assert row.interval.low < row.samples_per_s < row.interval.high
    assert (row.interval.confidence, row.interval.num_values) == (0.95, 5)
    assert row.memory_bytes == records.GPU_MEMORY.allocated_bytes


def test_memory_of_cpu_rank_includes_its_workers() -> None:
    record = records.cpu_run()
    judge(record)
    memory = records.CPU_MEMORY
    assert compare([record])[0].memory_bytes == (memory.host_rss_bytes or 0) + (memory.workers_rss_bytes or 0)


def test_noise_shared_by_paired_rounds_cancels() -> None:
    speedup = speedup_of(second(arm(), arm(0.5)))
    assert (speedup.center, speedup.low, speedup.high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


def test_difference_within_noise_has_one_in_its_interval() -> None:
    speedup = speedup_of(second(arm(), arm(longer=tuple(reversed(records.STEADY)))))
    assert speedup.has_interval
    assert speedup.low < 1 < speedup.high


def test_rounds_are_paired_by_index() -> None:
    base, other = arm(longer=(1.0, 1.1, 1.2, 1.3)), arm(0.5, longer=(1.0, 1.1, 1.2, 1.3))
    del other.rounds[0]
    row = second(base, other)
    assert (speedup_of(row).center, speedup_of(row).pairs, row.rounds_differ) == (pytest.approx(2), 3, True)


def test_two_rounds_give_a_range_without_confidence() -> None:
    row = second(arm(longer=(1.0, 1.0)), arm(0.5, longer=(1.0, 1.1)))
    assert row.interval is not None
    assert (row.interval.confidence, row.interval.num_values) == (None, 2)
    assert (row.interval.low, row.interval.high) == (pytest.approx(1024 / 0.0222 / 1.1), pytest.approx(1024 / 0.0222))
    assert (speedup_of(row).low, speedup_of(row).high, speedup_of(row).has_interval) == (pytest.approx(2 / 1.1), pytest.approx(2), False)


def test_single_shared_round_has_no_interval() -> None:
    row = second(arm(), arm(0.5, longer=(1.0,), status="interrupted"))
    assert (speedup_of(row).center, speedup_of(row).pairs, speedup_of(row).has_interval, row.state) == (pytest.approx(2), 1, False, "")


def test_invalid_arm_has_no_figure() -> None:
    row = second(arm(), arm(traces={0: {"numerics": records.numerics(7.0, None, nonfinite_step=1)}}))
    assert (row.state, row.samples_per_s, row.speedup) == ("invalid", None, None)


def test_failed_arm_has_no_figure_despite_rounds() -> None:
    row = second(arm(), arm(longer=(1.0, 1.0), status="failed", fault=Fault(message="CUDA out of memory on rank 1")))
    assert (row.state, row.samples_per_s) == ("failed", None)


def test_interrupted_arm_without_rounds_reports_its_status() -> None:
    row = second(arm(), arm(longer=(), status="interrupted"))
    assert row.state == "interrupted"


def test_arm_without_rounds_is_not_measured() -> None:
    row = second(arm(), arm(longer=()))
    assert row.state == "not measured"


def test_baseline_without_figure_gives_no_speedup() -> None:
    row = second(arm(status="failed", fault=Fault(message="broke")), arm())
    assert (row.samples_per_s is not None, row.speedup, row.state) == (True, None, "")


def test_arms_on_different_gpus_are_not_comparable() -> None:
    row = second(arm(), arm(0.5, environment=records.environment(4, device="NVIDIA A100")))
    assert (row.state, row.speedup) == ("not comparable", None)
