"""Disturbed rounds: which they are, and that no figure of a diagnosis depends on one."""

from __future__ import annotations

import csv
import io
import re
from random import Random
from statistics import fmean, median

import pytest
import records
from script_diagnoses import PAUSED, benchmark, rates, script_diagnosis

from ddpbench.analysis.controls import controls_of, step_s
from ddpbench.analysis.disturbance import disturbances, disturbed_places, without_disturbed
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.pipeline.part_rates import pipeline_rates
from ddpbench.analysis.whatif.external import collect_measurements
from ddpbench.analysis.whatif.query import diagnosed_input
from ddpbench.record.bottleneck import DataWait
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, LOADER_IN_BACKGROUND
from ddpbench.report.export import jobs_to_csv
from ddpbench.report.markdown import to_markdown

UNDISTURBED = [each for each in PAUSED if each > 1000]


def mean_rate(figures: list[float]) -> float:
    """Of rounds with equally many samples."""
    return len(figures) / sum(1 / each for each in figures)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (PAUSED, [3]),
        ([100, 101, 99, 20, 100, 98, 102, 100], [3]),
        ([100, 101, 99, 70, 100, 98, 102, 100], []),  # many deviations, but no factor of 1.5
        ([100, 40, 160, 30, 120, 60, 90, 20], []),  # all of them vary
        ([100, 100, 20, 100, 20, 20, 100, 100], []),  # three of eight are no exceptions
        ([100, 20, 100, 20, 100, 100, 100, 100], [1, 3]),
        ([100, 101, 100, 99, 100, 100, 40, 40], []),  # slower from some round on
        ([40, 40, 100, 101, 100, 99, 100, 100], []),
        ([40, 100, 101, 100, 99, 100, 100, 100], [0]),
        ([100, 20, 100], []),
        ([100, 100, 20, 100], [2]),
        ([5.0], []),
        ([], []),
    ],
)
def test_disturbed_rounds(figures: list[float], expected: list[int]) -> None:
    assert disturbed_places(figures) == expected


def test_at_most_a_quarter_is_disturbed_and_none_by_usual_noise() -> None:
    random = Random(1)
    for _ in range(500):
        spread = random.choice([0.0, 0.01, 0.1, 0.5, 1.5])
        figures = [1000 * 2.0 ** random.gauss(0, spread) for _ in range(random.randint(1, 20))]
        places = disturbed_places(figures)
        assert len(places) <= len(figures) / 4
        middle = median(figures)
        assert all(not middle / 1.5 < figures[place] < 1.5 * middle for place in places)
        assert places == [] or spread >= 0.1
        assert disturbed_places([7 * each for each in figures]) == places


def test_drift_is_not_disturbed() -> None:
    for factor in (1.1, 2.0, 10.0):
        for rounds in range(2, 20):
            assert disturbed_places([1000 * factor ** (place / rounds) for place in range(rounds)]) == []


def test_bursts_within_rounds_are_not_disturbed() -> None:
    """With four workers, every fourth step waits: rounds of four batches per worker have the same throughput."""
    assert disturbances(records.job(records.record([{"data": 10.0, "forward": 5.0}] * 2, steps=16))) == []


def test_no_figure_of_a_diagnosis_depends_on_a_disturbed_window() -> None:
    job = script_diagnosis(rates(1230.0), PAUSED, wait=0.45, loader=benchmark(1300.0), background=rates(2350.0))
    expected = pytest.approx(mean_rate(UNDISTURBED))
    inputs, _ = diagnosed_input(job)
    pipeline = pipeline_model(inputs)
    assert pipeline.device_rate == expected
    assert pipeline_rates(inputs, pipeline).compute_only == expected
    verdict = job.records[0].verdict
    assert verdict is not None
    assert verdict.kind == "data-bound"
    assert isinstance(verdict.evidence, DataWait)
    assert verdict.evidence.device_samples_per_s == expected
    assert job.records[1].role == COMPUTE_ONLY
    assert len(job.records[1].rounds) == 8, "what was measured stays in the record"
    estimate = job.records[1].throughput
    assert estimate is not None
    assert (estimate.samples_per_s, estimate.rounds) == (expected, 7)
    assert min(UNDISTURBED) < estimate.low < estimate.high < max(UNDISTURBED)
    [spans] = collect_measurements(job).step_times_s.values()
    assert 64 / fmean(span for each in spans for span in each) == expected
    row = [*csv.DictReader(io.StringIO(jobs_to_csv(job)))][1]
    assert (float(row["samples_per_s"]), 64_000 / float(row["step_ms"]), int(row["rounds_done"])) == (expected, expected, 8)
    assert "| compute only | 2,400 |" in to_markdown(job)


def test_verdict_is_that_without_the_disturbed_window() -> None:
    disturbed = script_diagnosis(rates(2380.0), PAUSED, background=rates(2350.0), loader=benchmark(9000.0))
    clean = script_diagnosis(rates(2380.0), UNDISTURBED, background=rates(2350.0), loader=benchmark(9000.0))
    kinds = [job.records[0].verdict.kind for job in (disturbed, clean) if job.records[0].verdict]
    assert kinds == ["compute-bound", "compute-bound"]


def test_rounds_of_the_training_are_named_but_count() -> None:
    slow = [*rates(1000.0, 7), 90.0]
    job = script_diagnosis(slow, rates(1010.0), background=[*rates(1000.0, 7), 300.0])
    assert without_disturbed(job.records[0]).rounds == job.records[0].rounds
    found = {each.record.role: each for each in disturbances(job)}
    assert {role: each.is_left_out for role, each in found.items()} == {BASELINE: False, LOADER_IN_BACKGROUND: True}
    assert [round(each) for each in found[BASELINE].samples_per_s] == [90]
    estimate = job.records[0].throughput
    assert estimate is not None
    assert estimate.samples_per_s == pytest.approx(1000.0, rel=0.01), "the median"
    background = controls_of(job).loader_in_background
    assert step_s(background) == pytest.approx(64 / 1000, rel=0.01)


def test_markdown_names_the_disturbed_window() -> None:
    text = " ".join(to_markdown(script_diagnosis(rates(1230.0), PAUSED, wait=0.45)).split())
    assert re.search(r"compute only: 1 of 8 windows was disturbed: 182 samples/s, the median of the others is 2,400; it is left out", text)
