"""Runs that wait a little for data, where something else takes more of a step or no loader would be faster."""

from __future__ import annotations

import pytest
import records
from msgspec.structs import replace
from script_diagnoses import benchmark, rates, script_diagnosis

from ddpbench.analysis.judge import judge, judge_all
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.whatif.query import diagnosed_input
from ddpbench.record.bottleneck import DataWait, PhaseShares
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Job
from ddpbench.record.verdict import Verdict
from ddpbench.report.messages.bottlenecks import explain_bottleneck

WORK = {"forward": 20.0, "backward": 40.0, "optimizer": 2.0}


def verdict_of(job: Job) -> Verdict:
    found = job.records[0].verdict
    assert found is not None
    return found


def fetching_trainer(wait: float, sample_ms: float, **changes: object) -> Job:
    """A trainer without workers, of which each sample takes ``sample_ms`` in the loader and 0.47 ms in training."""
    return script_diagnosis(
        rates((1 - wait) * 2100.0),
        rates(2100.0),
        wait=wait,
        workers=0,
        loader=benchmark(1000.0 / sample_ms, cpu_ms=sample_ms),
        all_cores=benchmark(1000.0 / sample_ms, cpu_ms=sample_ms, workers=8),
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("sync_ms", "kind"), [(5.0, "data-bound"), (11.0, "data-bound"), (25.0, "sync-bound")])
def test_longer_of_data_wait_and_gradient_sync_is_the_bottleneck(sync_ms: float, kind: str) -> None:
    record = records.record([{**WORK, "data": 14.0, "sync": sync_ms}] * 4)
    judge(record)
    assert record.verdict is not None
    assert record.verdict.kind == kind


def test_wait_that_a_worker_shortens_is_the_bottleneck() -> None:
    found = verdict_of(fetching_trainer(0.18, 0.09))
    assert (found.kind, found.cause) == ("data-bound", "too-few-workers")


@pytest.mark.parametrize("tried", [1500.0, 1725.0, 1850.0])
def test_rest_of_the_step_is_the_bottleneck_if_the_only_change_saves_less_than_a_tenth(tried: float) -> None:
    found = verdict_of(fetching_trainer(0.18, 0.09, trials={Scenario(workers=1): rates(tried, 9)[3:]}))
    assert found.kind == "compute-bound"
    assert isinstance(found.evidence, PhaseShares)
    assert found.evidence.unavoidable_wait_ms == pytest.approx(0.18 * 1000 * 64 / (0.82 * 2100), rel=0.03)


def test_long_wait_is_the_bottleneck_also_if_nothing_shortens_it() -> None:
    found = verdict_of(fetching_trainer(0.45, 0.38, trials={Scenario(workers=1): rates(900.0, 9)[3:]}))
    assert found.kind == "data-bound"
    assert isinstance(found.evidence, DataWait)


def test_page_says_that_the_wait_stays() -> None:
    job = fetching_trainer(0.18, 0.09, trials={Scenario(workers=1): rates(1500.0, 9)[3:]})
    assert "no tried or predicted change of the loader saves a tenth" in explain_bottleneck(verdict_of(job).evidence, job.records[0]).reason


def test_smaller_last_batches_count_with_their_samples() -> None:
    job = script_diagnosis(rates(1000.0), rates(2000.0), wait=0.4, loader=benchmark(1100.0))
    full = pipeline_model(diagnosed_input(job)[0])
    job.records[0].rounds = [replace(timed, samples=timed.samples * 3 // 4) for timed in job.records[0].rounds]
    judge_all(job)
    found, throughput = pipeline_model(diagnosed_input(job)[0]), job.records[0].throughput
    assert throughput is not None
    assert found.achieved_rate == pytest.approx(throughput.samples_per_s, rel=0.02)
    assert found.achieved_rate == pytest.approx(0.75 * full.achieved_rate)
    assert found.device_rate == full.device_rate, "of repeated batches, which are whole"
