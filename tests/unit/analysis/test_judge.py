"""Throughput with its two intervals, and its removal by an error check."""

from __future__ import annotations

import math
from statistics import stdev

import msgspec
import pytest
import records

from ddpbench.analysis.judge import judge
from ddpbench.analysis.throughput import estimate_across_launches, estimate_throughput
from ddpbench.record.record import Job

FIGURES = [4510.0, 4523.0, 4541.0, 4498.0, 4533.0]


def test_figure_is_the_median_of_rounds_with_interval() -> None:
    record = records.data_bound()
    judge(record)
    assert record.throughput is not None
    figure = record.throughput
    assert figure.samples_per_s == pytest.approx(1024 / 0.2264)
    assert (round(figure.low), round(figure.high), figure.rounds) == (4498, 4549, 5)
    assert record.status == "ok"
    assert record.verdict is not None
    assert [check.code for check in record.checks] == ["oversubscribed-cpu"]


def test_interval_contains_the_median_if_a_minority_is_slow() -> None:
    figure = estimate_throughput([100.0] * 14 + [80.0] * 6)
    assert figure.samples_per_s == 100
    assert figure.low < 95
    assert figure.high == figure.samples_per_s
    launches = estimate_across_launches(figure, [100.0] * 14 + [80.0] * 6)
    assert launches.low < launches.samples_per_s <= launches.high


def test_launch_interval_uses_an_assumed_spread() -> None:
    figure = estimate_throughput(FIGURES)
    assert (figure.launch_sd, figure.launch_source) == (0.004, "assumed")
    assert figure.launch_low < figure.low < figure.high < figure.launch_high
    steady = estimate_throughput([4523.0] * 5)
    assert steady.launch_high / 4523 == pytest.approx(math.exp(1.959964 * 0.004))


@pytest.mark.parametrize("spread", [0.0001, 0.002, 0.004, 0.05])
def test_launch_interval_contains_the_round_interval(spread: float) -> None:
    figure = estimate_throughput([4523 * (1 + spread * each) for each in (0, 1, -1, 0.5, 2)])
    assert figure.launch_low < figure.low < figure.samples_per_s < figure.high < figure.launch_high


def test_three_earlier_runs_replace_the_assumed_spread() -> None:
    earlier = [4450.0, 4523.0, 4600.0]
    known = estimate_throughput(FIGURES, earlier)
    assert (known.launch_source, known.num_launches) == ("earlier_runs", 3)
    assert known.launch_sd == pytest.approx(stdev(math.log(value) for value in earlier))
    assert estimate_throughput(FIGURES, earlier[:2]).launch_source == "assumed"
    assert known.launch_high > estimate_throughput(FIGURES).launch_high


def test_single_round_has_no_interval() -> None:
    figure = estimate_throughput([4523.0])
    assert (figure.low, figure.samples_per_s, figure.high, figure.rounds) == (4523, 4523, 4523, 1)
    assert figure.launch_low < 4523 < figure.launch_high


def test_several_launches_give_a_measured_spread() -> None:
    merged = estimate_across_launches(estimate_throughput(FIGURES), [4500.0, 4520.0, 4560.0])
    assert (merged.samples_per_s, merged.launch_source, merged.num_launches, merged.rounds) == (4520, "launches", 3, 5)
    assert merged.low == merged.launch_low < 4500
    assert merged.launch_sd == pytest.approx(0.0067, abs=1e-4)


def test_invalid_run_has_no_figure_and_no_verdict() -> None:
    record = records.record(traces={0: {"numerics": records.numerics(7.0, None, nonfinite_step=3)}})
    judge(record)
    assert (record.status, record.throughput, record.verdict) == ("invalid", None, None)


@pytest.mark.parametrize("status", ["failed", "hung", "interrupted", "running"])
def test_interrupted_run_keeps_its_status_and_figure(status: str) -> None:
    record = records.record(longer=[1.0, 1.001], status=status)
    judge(record)
    assert record.throughput is not None
    assert (record.status, record.throughput.rounds) == (status, 2)
    dead = records.record(status=status, traces={0: {"numerics": records.numerics(nonfinite_step=3)}})
    judge(dead)
    assert (dead.status, dead.throughput) == (status, None)


def test_no_rounds_give_no_figure_checks_or_verdict() -> None:
    record = records.record(longer=[], status="refused")
    judge(record)
    assert (record.throughput, record.checks, record.verdict) == (None, [], None)


@pytest.mark.parametrize(
    "record", [records.data_bound(), records.cpu_run(), records.record(longer=[1.0])], ids=["gpus", "cpu", "one round"]
)
def test_judged_record_round_trips_through_json(record: records.Record) -> None:
    judge(record)
    job = records.job(record)
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
