"""Causes of a slow loader of a script that workers do not cure: samples fetched one by one, and a slow sampler."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from script_diagnoses import BATCH, STEPS, benchmark, rates, script_diagnosis

from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.remedies.predict import predict_remedies, scenarios_to_try
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job
from ddpbench.record.root_cause import OneByOne, SlowSampler
from ddpbench.record.verdict import ChangeDataLoader
from ddpbench.report.messages.verdict import explain_verdict, next_step_text

RESIDENT, READY = Scenario(resident=True), Scenario(ready_indices=True)


def resident(samples_per_s: float | None, **changes: Any) -> Job:
    """A script that waits 80% of the time for a loader without workers, whose data are read at ``samples_per_s`` on the device."""
    stats = LoaderStats(samples=STEPS * BATCH, cpu_s={"sample": 0.8}, wall_s={"sample": 0.8}, num_waits=STEPS, waited_ms=820.0)
    common: dict[str, Any] = {"wait": 0.8, "workers": 0, "loader": benchmark(1500.0, cpu_ms=0.65), "stats": stats}
    job = script_diagnosis(rates(1200.0), rates(6000.0), **{**common, **changes})
    assert job.diagnosis is not None
    if samples_per_s:
        job.diagnosis.resident_loader_benchmarks = [benchmark(samples_per_s, workers=0, cpu_ms=0.01)]
    judge_all(job)
    return job


def drawn(sampler_ms: float | None, workers: int = 1, wait_ms: float = 40.0) -> Job:
    """A script that waits for ``wait_ms`` per batch, in which its own process draws indices for ``sampler_ms``."""
    stats = LoaderStats(
        samples=STEPS * BATCH,
        cpu_s={"sample": 0.05},
        wall_s={"sample": 0.05},
        batch_ms=[2.5] * STEPS,
        sampler_s=None if sampler_ms is None else STEPS * sampler_ms / 1000,
        num_waits=STEPS,
        waited_ms=STEPS * wait_ms,
        handoff_ms=wait_ms if workers else 0.2,
    )
    loader = benchmark(1400.0, cpu_ms=0.04)
    return script_diagnosis(rates(1200.0), rates(5500.0), wait=wait_ms * 1200 / BATCH / 1000, workers=workers, stats=stats, loader=loader)


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
