"""What a diagnosis recommends: nothing whose trial failed or lost, and no present setting that could not be compared."""

from __future__ import annotations

import io
import re

import pytest
from diagnoses import DIAGNOSES
from msgspec.structs import replace
from script_diagnoses import benchmark, rates, script_diagnosis, unexplained

from ddpbench.analysis.controls import ControlRuns, controls_of
from ddpbench.analysis.judge import judge_all
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job
from ddpbench.record.remedy import Advice
from ddpbench.record.roles import BASELINE_REPEAT, trial_role
from ddpbench.record.script import SampleComparison
from ddpbench.record.verdict import ChangeDataLoader
from ddpbench.report.console import make_console
from ddpbench.report.pages.diagnosis import render_diagnosis
from ddpbench.report.summarize_job import summarize_job

WORKERS = Scenario(workers=9)
FAILURE = "prefetched batches need 0.1 GiB of shared memory, 0.1 GiB are free"


def conclusion(job: Job) -> str:
    stream = io.StringIO()
    render_diagnosis(job, make_console(stream), None, quiet=True)
    return " ".join(stream.getvalue().split())


def with_trial(result: list[float] | str, **changes: object) -> Job:
    """Of the number of workers that the costs suggest: two take 3.2 ms for a sample and are the limit."""
    return script_diagnosis(
        rates(620.0),
        rates(2300.0),
        wait=0.72,
        loader=benchmark(620.0, cpu_ms=1.0, wall_ms=3.2),
        trials={WORKERS: result},
        predictions=[Prediction(scenario=WORKERS, gain=3.1, low=2.5, high=3.5)],
        **changes,  # type: ignore[arg-type]
    )


def test_suggestion_is_next_until_it_was_tried() -> None:
    job = with_trial(FAILURE)
    job.records = job.records[:2]
    judge_all(job)
    assert " next DataLoader(..., num_workers=9, persistent_workers=True)" in conclusion(job)


@pytest.mark.parametrize(
    ("result", "is_rejected"), [(FAILURE, True), (rates(500.0, 6), True), (rates(621.0, 6), False), (rates(1900.0, 6), False)]
)
def test_failed_or_losing_trial_is_not_the_next_step(result: list[float] | str, is_rejected: bool) -> None:
    job = with_trial(result)
    assert (WORKERS in controls_of(job).rejected) == is_rejected
    verdict = job.records[0].verdict
    assert verdict is not None
    assert (verdict.next == ChangeDataLoader(num_workers=9, persistent_workers=True)) != is_rejected
    if is_rejected:
        assert "num_workers=9" not in conclusion(job)


@pytest.mark.parametrize(("tried", "is_rejected"), [(3, True), (8, True), (9, True), (10, False), (2, False), (1, False)])
def test_more_workers_than_failed_are_rejected_too(tried: int, is_rejected: bool) -> None:
    controls = ControlRuns(rejected=frozenset({Scenario(workers=tried)}))
    assert controls.rejects(WORKERS, workers=2) == is_rejected
    assert not controls.rejects(Scenario(prefetch=4), workers=2)
    assert not controls.rejects(None, workers=2)


@pytest.mark.parametrize(
    ("result", "use"),
    [
        (FAILURE, "undecided: no trial worked, as the remedies below say"),
        (rates(500.0, 6), "the current settings: no trial is measurably faster"),
        (rates(1900.0, 6), "DataLoader(..., num_workers=9, persistent_workers=True)"),
    ],
)
def test_present_settings_are_recommended_only_if_a_trial_lost(result: list[float] | str, use: str) -> None:
    assert f" use {use}" in conclusion(with_trial(result))


def test_data_bound_run_without_a_possible_trial_is_undecided() -> None:
    more_cores = Prediction(scenario=Scenario(cores_per_gpu=16.0), gain=2.0, low=1.5, high=2.5)
    assert " use undecided: no remedy could be tried here" in conclusion(unexplained(predictions=[more_cores]))
    healthy = script_diagnosis(rates(1000.0), rates(1010.0), predictions=[more_cores])
    assert " use the current settings: no remedy that can be tried here has a predicted gain" in conclusion(healthy)


def test_script_whose_samples_forbid_workers_is_told_so() -> None:
    job = unexplained(predictions=[])
    baseline = job.records[0]
    assert baseline.script
    compared = SampleComparison(workers=2, samples=300, not_compared="shuffled", is_stream=True)
    baseline.script = replace(baseline.script, sample_comparison=compared)
    judge_all(job)
    assert " use undecided: more workers may read other samples, and nothing else could be tried here" in conclusion(job)
    assert job.diagnosis
    assert job.diagnosis.advice == Advice(code="undecided-other-samples")
    advice = summarize_job(job, None).advice
    assert advice is not None
    assert advice.code == "undecided-other-samples"


def test_guess_that_was_not_tried_leaves_the_choice_open() -> None:
    assert " use " not in conclusion(unexplained(predictions=[Prediction(scenario=WORKERS)]))


def test_losing_trial_of_a_workload_is_not_its_next_command() -> None:
    """The next best remedy is, which was not tried."""
    job = DIAGNOSES["too-few-workers"][0]()
    baseline = job.records[0]
    before = conclusion(job)
    assert re.search(r"next ddpbench .*--workers 2,15", before)
    roles = (BASELINE_REPEAT, trial_role(Scenario(workers=15)))
    repeat, trial = (replace(baseline, role=role, rounds=[*baseline.rounds]) for role in roles)
    trial.rounds = [replace(timed, wall_s=1.3 * timed.wall_s) for timed in trial.rounds]
    job.records += [repeat, trial]
    judge_all(job)
    assert baseline.verdict is not None
    assert baseline.verdict.next is not None
    assert "--workers 2,15" not in conclusion(job)
