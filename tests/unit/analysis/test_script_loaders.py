"""Causes of a slow loader of a script that workers do not cure: samples fetched one by one, and a slow sampler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from script_diagnoses import augmented, decoded, decoded_and_tried, drawn, resident

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import controls_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.pipeline.costs import costly_parts, loader_cost_of_run
from ddpbench.analysis.remedies.predict import predict_remedies, scenarios_to_try
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.whatif.query import diagnosed_input, predict_gain
from ddpbench.record.errors import UsageError
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job
from ddpbench.record.root_cause import OneByOne, SlowSampler
from ddpbench.record.verdict import ChangeDataLoader
from ddpbench.report.messages.causes import parts_text
from ddpbench.report.messages.remedies import remedy_reason
from ddpbench.report.messages.verdict import explain_verdict, next_step_text

RESIDENT, READY = Scenario(resident=True), Scenario(ready_indices=True)


def predicted(job: Job) -> dict[Scenario, Prediction]:
    return {each.scenario: each for each in predict_remedies(job)}


def test_data_that_are_read_much_faster_at_once_are_fetched_one_by_one() -> None:
    job = resident(60_000.0)
    verdict = job.records[0].verdict
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == ("data-bound", "one-by-one")
    assert verdict.cause_evidence == OneByOne(samples_per_s=pytest.approx(1500.0), resident_samples_per_s=pytest.approx(60_000.0))
    assert "fetched one by one and collated: 1,500 samples/s, whole batches" in explain_verdict(verdict, job.records[0]).reason
    found = predicted(job)[RESIDENT]
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 / (1200 / 6000 + 1200 / 60_000) < found.high, "a step computes, and then takes a batch"
    assert RESIDENT in scenarios_to_try(list(predicted(job).values()), job.records[0])
    assert verdict.next == ChangeDataLoader(resident=True)
    assert next_step_text(verdict.next) == "ddpbench.loaders.resident(loader)"


@pytest.mark.parametrize("samples_per_s", [None, 2900.0])
def test_other_data_have_another_cause(samples_per_s: float | None) -> None:
    verdict = resident(samples_per_s).records[0].verdict
    assert verdict is not None
    assert verdict.cause not in (None, "one-by-one")


@pytest.mark.parametrize("workers", [0, 1])
def test_sampler_that_takes_most_of_the_wait_is_named(workers: int) -> None:
    job = drawn(35.0, workers)
    record = job.records[0]
    record.script = record.script and replace(record.script, sampler="ByWeight")
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.cause) == ("data-bound", "slow-sampler")
    assert record.verdict.cause_evidence == SlowSampler(sampler_fraction=pytest.approx(35 / 40), batch_ms=pytest.approx(35.0))
    reason = explain_verdict(record.verdict, record).reason
    assert "ByWeight draws the indices of a batch in 35 ms in the trainer process, 88% of the data wait" in reason
    found = predicted(job)[READY]
    assert found.gain is not None
    assert found.gain > 1.5
    assert scenarios_to_try(list(predicted(job).values()), record)[0] == READY
    assert record.verdict.next == ChangeDataLoader(ready_indices=True)


@pytest.mark.parametrize("sampler_ms", [None, 0.1, 15.0])
def test_sampler_that_takes_less_is_no_cause(sampler_ms: float | None) -> None:
    job = drawn(sampler_ms)
    verdict = job.records[0].verdict
    assert verdict is not None
    assert verdict.cause != "slow-sampler"
    assert READY not in predicted(job)


def test_costly_parts_of_a_sample_are_named() -> None:
    record = augmented().records[0]
    cost = loader_cost_of_run(record)
    assert cost is not None
    assert [(each.name, round(1000 * each.sample_s, 2)) for each in costly_parts(cost, record.traces)] == [
        ("RandAugment", 5.0),
        ("", 2.6),
        ("ToTensor", 1.5),
    ]
    assert parts_text(record.traces, "sample", "Pictures") == "of 10 ms per sample: RandAugment 5, the rest of Pictures 2.6, ToTensor 1.5"


def test_parts_are_not_named_without_a_transform() -> None:
    assert parts_text(augmented({}).records[0].traces, "sample", "Pictures") == ""


@pytest.mark.parametrize(
    ("job", "scenario", "reason"),
    [
        (resident, Scenario(resident=True, workers=4), "loaded without workers"),
        (lambda: resident(None), RESIDENT, "cannot stay on the device, or that was not measured"),
        (resident, READY, "how long the sampler of this training takes was not measured"),
    ],
    ids=["with workers", "not resident", "no sampler"],
)
def test_what_was_not_measured_is_not_predicted(job: Callable[[], Job], scenario: Scenario, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        predict_gain(*diagnosed_input(job()), scenario)


DECODED = Scenario(decode_on_gpu=True)


def test_decoding_on_the_gpu_is_predicted_and_says_that_pixels_change() -> None:
    job = decoded()
    found = predicted(job)[DECODED]
    assert found.low is not None
    assert found.high is not None
    assert 2.8 < found.low < 4.6 < found.high, "computing alone is five times as fast, and decoding slows it down"
    assert found.high / found.low < 1.65
    assert scenarios_to_try(list(predicted(job).values()), job.records[0])[0] == DECODED
    record = job.records[0]
    verdict = record.verdict
    assert verdict is not None
    inputs = AnalysisInput(record, summarize(record), controls_of(job))
    remedy = next(each for each in recommend(CommandBuilder.of(record, job), inputs, verdict) if each.scenario == DECODED)
    assert remedy_reason(remedy, record) == ("changes pixels: by 0.51 of 255 on average, by 12 at most; validation keeps its own decoder")


def test_what_the_gpu_has_decoded_faster_is_advised() -> None:
    diagnosis = decoded_and_tried().diagnosis
    assert diagnosis is not None
    assert diagnosis.advice is not None
    assert diagnosis.advice.change == ChangeDataLoader(decode_on_gpu=True)
    assert next_step_text(diagnosis.advice.change) == "ddpbench.loaders.decode_on_gpu(loader)"


def test_gpu_that_decodes_already_gets_no_workers() -> None:
    job = decoded(None)
    record = job.records[0]
    record.config = replace(record.config, loader="DecodingLoader")
    judge_all(job)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.next) == ("data-bound", None)
    record.config = replace(record.config, loader="DataLoader")
    judge_all(job)
    assert isinstance(record.verdict.next, ChangeDataLoader)


def test_gpu_that_decodes_slower_than_it_trains_is_the_limit() -> None:
    found = predicted(decoded(1200.0))[DECODED]
    assert found.low is not None
    assert found.high is not None
    assert found.low < 2.0 < found.high
    assert DECODED not in predicted(decoded(None))
