"""Workers for every core are offered to a script where no gain can be predicted, and nothing speaks against them."""

from __future__ import annotations

from typing import Any

import pytest
from diagnoses import DIAGNOSES
from msgspec.structs import replace
from script_diagnoses import benchmark, rates, script_diagnosis, tried_unpredicted, unexplained

from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.remedies.outcomes import best_remedy, outcomes
from ddpbench.analysis.remedies.predict import predict_remedies, scenarios_to_try
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.remedies.script import is_tried_unpredicted
from ddpbench.analysis.whatif.query import diagnosed_input
from ddpbench.record.diagnosis import WorkerMemory
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job
from ddpbench.record.root_cause import TimeOutsideSamples
from ddpbench.report.messages.remedies import TRIED_WITHOUT_PREDICTION, measured_gain_text, remedy_details


def codes(job: Job) -> list[str]:
    inputs, builder = diagnosed_input(job)
    assert inputs.record.verdict is not None
    return [remedy.code for remedy in recommend(builder, inputs, inputs.record.verdict)]


def tried(job: Job) -> list[Scenario]:
    return scenarios_to_try(predict_remedies(job), job.records[0])


@pytest.mark.parametrize(("cores", "workers", "expected"), [(8.0, 2, [8]), (4.0, 0, [1, 4]), (2.0, 0, [1, 2]), (16.0, 4, [16])])
def test_workers_for_every_core_are_tried_if_a_step_is_not_explained(cores: float, workers: int, expected: list[int]) -> None:
    """After the number that the costs suggest, if that is larger than the present one: without a prediction it is a guess as well."""
    assert [each.workers for each in tried(unexplained(cores=cores, workers=workers, loader=benchmark(1250.0, cpu_ms=0.01)))] == expected


@pytest.mark.parametrize(
    ("cores", "workers"),
    [(2.0, 8), (8.0, 7), (8.0, 8), (2.0, 2)],
    ids=["oversubscribed", "nearly a worker per core", "one per core", "full"],
)
def test_nothing_is_offered_if_workers_fill_the_cores(cores: float, workers: int) -> None:
    job = unexplained(cores=cores, workers=workers)
    assert "all-cores-workers" not in codes(job)
    assert [each for each in tried(job) if (each.workers or 0) > workers] == []


@pytest.mark.parametrize(
    ("batches", "expected"),
    [(100, Scenario(workers=8)), (9, Scenario(workers=8, prefetch=1)), (4, Scenario(workers=4, prefetch=1)), (2, None), (0, None)],
)
def test_as_many_workers_are_offered_as_fit_in_the_shared_memory(batches: int, expected: Scenario | None) -> None:
    job = unexplained()
    assert job.diagnosis is not None
    memory = WorkerMemory(batch_bytes=10**6, worker_bytes=10**6, shm_bytes=batches * 10**6, memory_bytes=10**9)
    job.diagnosis.worker_memory = memory
    judge_all(job)
    assert tried(job) == ([expected] if expected else [])


def test_explained_step_has_a_prediction_and_no_guess() -> None:
    """Two workers take 3.2 ms for a sample: they are the limit."""
    job = script_diagnosis(rates(620.0), rates(2300.0), wait=0.72, loader=benchmark(620.0, cpu_ms=1.0, wall_ms=3.2))
    predictions = predict_remedies(job)
    assert all(each.gain for each in predictions if each.scenario.only_workers)
    assert any(each.scenario.only_workers for each in predictions)
    assert "all-cores-workers" not in codes(job)


def test_time_outside_of_samples_is_not_for_workers() -> None:
    """A step waits 2.9 ms for its batch, of which its samples take 0.1: something else in the loader does, such as its sampler."""
    loader = benchmark(1250.0, cpu_ms=0.01)
    job = script_diagnosis(rates(1230.0), rates(2300.0), wait=0.45, workers=0, loader=loader, stats=loader.loader_stats)
    verdict = job.records[0].verdict
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == ("data-bound", None)
    assert isinstance(verdict.cause_evidence, TimeOutsideSamples)
    assert verdict.cause_evidence.sample_ms < 0.1 * verdict.cause_evidence.wait_ms


def test_untried_guess_is_not_the_next_step() -> None:
    job = unexplained()
    assert codes(job) == ["all-cores-workers"]
    verdict = job.records[0].verdict
    assert verdict is not None
    assert (verdict.kind, verdict.next) == ("data-bound", None)


def test_guess_that_was_faster_is_recommended() -> None:
    best = best_remedy(outcomes(tried_unpredicted()))
    assert best is not None
    assert best.scenario == Scenario(workers=8)
    assert remedy_details(best) == TRIED_WITHOUT_PREDICTION
    assert measured_gain_text(best).startswith("1.7")


@pytest.mark.parametrize("name", ["storage-or-cores", "too-few-workers", "slow-handoff"])
def test_workloads_of_ones_own_get_predictions_only(name: str) -> None:
    assert "all-cores-workers" not in codes(DIAGNOSES[name][0]())


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (Scenario(workers=4), True),
        (Scenario(workers=0), False),
        (Scenario(workers=4, prefetch=1), True),
        (Scenario(workers=4, prefetch=4), False),
        (Scenario(prefetch=4), False),
        (Scenario(pin_memory=True), False),
    ],
)
def test_what_is_tried_without_a_prediction(scenario: Scenario, expected: bool) -> None:
    assert is_tried_unpredicted(scenario) == expected
    assert scenarios_to_try([Prediction(scenario=scenario)], unexplained().records[0]) == ([scenario] if expected else [])


def test_kept_workers_are_tried_only_in_whole_epochs() -> None:
    kept = Scenario(persistent_workers=True)
    predictions = [Prediction(scenario=kept, gain=2.0, low=1.8, high=2.2)]
    record = unexplained().records[0]
    assert scenarios_to_try(predictions, record) == [kept]
    assert scenarios_to_try(predictions, record, whole_epochs=False) == []


def test_predicted_changes_are_tried_first() -> None:
    known: dict[str, Any] = {"low": 1.0, "high": 2.0}
    guess, sure, better = (
        Prediction(scenario=Scenario(workers=8)),
        *(Prediction(scenario=Scenario(prefetch=number), gain=gain, **known) for number, gain in ((4, 1.2), (8, 1.5))),
    )
    record = unexplained().records[0]
    assert scenarios_to_try([guess, sure, better], record) == [better.scenario, sure.scenario]
    assert scenarios_to_try([guess, replace(sure, gain=None), better], record) == [better.scenario, guess.scenario]
