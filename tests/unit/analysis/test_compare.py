"""Arms side by side: paired, and honest about the one that has no figure."""

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


def times(row: ArmRow) -> PairedRatio:
    assert row.speedup is not None
    return row.speedup


def test_the_first_arm_is_the_measure() -> None:
    row = compare([arm(), arm(0.5)])[0]
    assert (row.speedup, row.state, row.rounds_differ) == (PairedRatio(1, 1, 1, 5), "", False)
    assert row.samples_per_s == pytest.approx(1024 / 0.0444)
    assert row.interval is not None
    assert row.interval.low < row.samples_per_s < row.interval.high
    assert (row.interval.confidence, row.interval.num_values) == (0.95, 5)
    assert row.memory_bytes == records.GPU_MEMORY.allocated_bytes


def test_on_processors_memory_is_a_ranks_with_its_workers() -> None:
    record = records.cpu_run()
    judge(record)
    memory = records.CPU_MEMORY
    assert compare([record])[0].memory_bytes == (memory.host_rss_bytes or 0) + (memory.workers_rss_bytes or 0)


def test_what_rounds_share_cancels() -> None:
    speedup = times(second(arm(), arm(0.5)))
    assert (speedup.center, speedup.low, speedup.high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


def test_a_difference_within_the_noise_has_one_in_its_interval() -> None:
    speedup = times(second(arm(), arm(longer=tuple(reversed(records.STEADY)))))
    assert speedup.has_interval
    assert speedup.low < 1 < speedup.high


def test_rounds_pair_by_their_index() -> None:
    base, other = arm(longer=(1.0, 1.1, 1.2, 1.3)), arm(0.5, longer=(1.0, 1.1, 1.2, 1.3))
    del other.rounds[0]
    row = second(base, other)
    assert (times(row).center, times(row).pairs, row.rounds_differ) == (pytest.approx(2), 3, True)


def test_two_rounds_have_a_range_and_no_interval() -> None:
    row = second(arm(longer=(1.0, 1.0)), arm(0.5, longer=(1.0, 1.1)))
    assert row.interval is not None
    assert (row.interval.confidence, row.interval.num_values) == (None, 2)
    assert (row.interval.low, row.interval.high) == (pytest.approx(1024 / 0.0222 / 1.1), pytest.approx(1024 / 0.0222))
    assert (times(row).low, times(row).high, times(row).has_interval) == (pytest.approx(2 / 1.1), pytest.approx(2), False)


def test_one_shared_round_gives_no_interval() -> None:
    row = second(arm(), arm(0.5, longer=(1.0,), status="interrupted"))
    assert (times(row).center, times(row).pairs, times(row).has_interval, row.state) == (pytest.approx(2), 1, False, "")


def test_an_invalid_arm_has_no_figure() -> None:
    row = second(arm(), arm(traces={0: {"numerics": records.numerics(7.0, None, nonfinite_step=1)}}))
    assert (row.state, row.samples_per_s, row.speedup) == ("invalid", None, None)


def test_a_failed_arm_has_no_figure_even_with_rounds() -> None:
    row = second(arm(), arm(longer=(1.0, 1.0), status="failed", fault=Fault(message="CUDA out of memory on rank 1")))
    assert (row.state, row.samples_per_s) == ("failed", None)


def test_an_arm_that_never_ran_says_so() -> None:
    row = second(arm(), arm(longer=(), status="interrupted"))
    assert row.state == "interrupted"


def test_an_arm_that_ended_well_without_a_round_was_not_measured() -> None:
    row = second(arm(), arm(longer=()))
    assert row.state == "not measured"


def test_against_an_arm_without_a_figure_there_is_no_speedup() -> None:
    row = second(arm(status="failed", fault=Fault(message="broke")), arm())
    assert (row.samples_per_s is not None, row.speedup, row.state) == (True, None, "")


def test_other_gpus_are_not_compared() -> None:
    row = second(arm(), arm(0.5, environment=records.environment(4, device="NVIDIA A100")))
    assert (row.state, row.speedup) == ("not comparable", None)
