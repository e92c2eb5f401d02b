"""Workers that fit in memory, and the advice that follows."""

from __future__ import annotations

import pytest
import records
from diagnoses import IMAGENET, TORCH, diagnosis
from msgspec.structs import replace

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import controls_of
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.remedies.loader_rules import LoaderContext, more_workers
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.worker_memory import WorkersThatFit, memory_limit, workers_that_fit
from ddpbench.record.diagnosis import WorkerMemory
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Fault, Job
from ddpbench.record.remedy import MoreWorkers
from ddpbench.record.roles import trial_role
from ddpbench.record.script import WatchedScript
from ddpbench.record.verdict import ChangeDataLoader, NextStep
from ddpbench.report.messages.remedies import remedy_reason

TEN_BATCHES = WorkerMemory(batch_bytes=10, shm_bytes=105, memory_bytes=1000)


@pytest.mark.parametrize(
    ("workers", "prefetch", "expected"),
    [(5, 2, (5, 2)), (6, 2, (6, 1)), (10, 1, (10, 1)), (11, 1, (10, 1)), (16, 4, (10, 1))],
)
def test_prefetch_is_lowered_before_the_number_of_workers(workers: int, prefetch: int, expected: tuple[int, int]) -> None:
    assert workers_that_fit(workers, prefetch, TEN_BATCHES) == WorkersThatFit(*expected)


def test_limit_is_shared_memory_or_that_of_the_workers() -> None:
    assert memory_limit(6, 2, TEN_BATCHES) == "shm"
    large = replace(TEN_BATCHES, worker_bytes=400)
    assert memory_limit(3, 1, large) == "memory"
    assert workers_that_fit(16, 2, large) == WorkersThatFit(2, 1)
    assert workers_that_fit(2, 1, replace(large, memory_bytes=100)) is None
    assert memory_limit(6, 2, replace(TEN_BATCHES, shm_bytes=None)) is None


def waiting(memory: WorkerMemory | None) -> Job:
    """A diagnosed script with two workers per rank, which waits for data."""
    job = diagnosis(430.0, config=replace(TORCH, workers=2), files=IMAGENET, place=records.environment(4))
    assert job.diagnosis is not None
    job.diagnosis.worker_memory = memory
    for record in job.records:
        record.script = WatchedScript()
    judge_all(job)
    return job


def remedy(job: Job) -> MoreWorkers:
    baseline = job.records[0]
    inputs = AnalysisInput(baseline, summarize(baseline), controls_of(job))
    found = more_workers(LoaderContext(CommandBuilder.of(baseline, job), inputs, pipeline_model(inputs)))
    assert isinstance(found, MoreWorkers)
    return found


def next_step(job: Job) -> NextStep | None:
    verdict = job.records[0].verdict
    assert verdict is not None
    return verdict.next


def test_as_many_workers_are_suggested_as_fit() -> None:
    wanted = remedy(waiting(None)).workers
    assert wanted > 4
    job = waiting(WorkerMemory(batch_bytes=10, shm_bytes=10 * 4 + 5, memory_bytes=1000))
    found = remedy(job)
    assert (found.workers, found.wanted_workers, found.limited_by) == (4, wanted, "shm")
    assert found.scenario == Scenario(workers=4, prefetch=1)
    assert next_step(job) == ChangeDataLoader(num_workers=4, prefetch_factor=1, persistent_workers=True)
    reason = remedy_reason(found, job.records[0], job.diagnosis)
    assert reason.endswith("/dev/shm has room for 4; docker run --shm-size=1g, or --ipc=host, raises it")


def test_no_more_workers_are_suggested_than_fit() -> None:
    found = remedy(waiting(WorkerMemory(batch_bytes=10, shm_bytes=20, memory_bytes=1000)))
    assert (found.workers, found.scenario) == (2, None)


def test_trial_that_failed_is_not_suggested() -> None:
    job = waiting(None)
    suggested = next_step(job)
    assert isinstance(suggested, ChangeDataLoader)
    failed = replace(
        job.records[0], role=trial_role(Scenario(workers=suggested.num_workers)), rounds=[], status="failed", fault=Fault(message="no")
    )
    job.records.append(failed)
    judge_all(job)
    after = next_step(job)
    assert not isinstance(after, ChangeDataLoader) or after.num_workers != suggested.num_workers
