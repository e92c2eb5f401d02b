"""Diagnoses of scripts whose workers would read other samples than the script does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SUPPORT, only_job

from ddpbench.analysis.remedies.script import may_try
from ddpbench.record.checks import RepeatedSamples, SharedHandles
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Job
from ddpbench.record.script import SampleComparison, SharedHandle
from ddpbench.record.verdict import ChangeDataLoader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

RECORDS = str(SUPPORT / "scripts" / "records.py")
Launch = Callable[..., Any]


def diagnosed(launch: Launch, folder: Path, *flags: str, limit_s: int = 15) -> tuple[Any, Job]:
    """The diagnosis of the script with ``flags``, whose own records were all the requested ones."""
    done = launch([*PLAIN, "diagnose", "--time-limit", str(limit_s), "-o", str(folder), RECORDS, "--folder", str(folder.parent), *flags])
    assert done.returncode == 0, done.stderr
    return done, only_job(folder)


def trials(job: Job) -> list[str]:
    return [record.status for record in job.records if record.role.kind == "trial"]


@pytest.mark.parametrize(("kind", "handle"), [("raw", "file"), ("zip", "archive")])
def test_no_worker_is_forked_that_would_share_an_open_file(launch: Launch, results: Path, kind: str, handle: str) -> None:
    done, job = diagnosed(launch, results, "--kind", kind, "--sample-ms", "3")
    assert "wrong 0" in done.stdout
    baseline, shared = job.records[0], [SharedHandle(name="RecordFile.file", kind=handle)]  # type: ignore[arg-type]
    assert baseline.script is not None
    assert baseline.script.shared_handles == shared
    assert not any(isinstance(check, SharedHandles) for check in baseline.checks), "the script has no workers"
    assert baseline.verdict is not None
    assert isinstance(baseline.verdict.next, ChangeDataLoader)
    assert baseline.verdict.next.shared_handles == shared
    assert trials(job) == []
    assert job.diagnosis is not None
    assert job.diagnosis.all_cores_loader_benchmarks == []
    advice = [line for line in done.stderr.splitlines() if "DataLoader(..., num_workers" in line]
    assert advice
    assert all("open RecordFile.file in each worker" in line for line in advice)


def test_workers_of_a_dataset_that_opens_its_file_with_a_sample_share_nothing(launch: Launch, results: Path) -> None:
    done, job = diagnosed(launch, results, "--lazy", limit_s=25)
    assert "wrong 0" in done.stdout
    script = job.records[0].script
    assert script is not None
    assert script.shared_handles == []
    assert script.sample_comparison is None or not script.sample_comparison.changes_samples
    assert job.diagnosis is not None
    assert job.diagnosis.all_cores_loader_benchmarks, "its workers open their own"
    assert [record.fault for record in job.records if record.role.kind == "trial" and record.fault] == []


def test_failure_after_workers_of_ddpbench_is_not_blamed_on_the_script(launch: Launch, results: Path) -> None:
    flags = ["--folder", str(results.parent), "--lazy", "--fail-after-children"]
    done = launch([*PLAIN, "diagnose", "--time-limit", "25", "-o", str(results), RECORDS, *flags])
    assert done.returncode == 1
    assert "RuntimeError: no such luck" in done.stderr
    assert "ddpbench had started loader workers of its own before" in done.stderr
    assert only_job(results).records[0].status == "failed"


def test_workers_of_the_script_that_share_a_file_are_a_defect(launch: Launch, results: Path) -> None:
    done, job = diagnosed(launch, results, "--workers", "3", "--sample-ms", "0.2")
    assert [check.handles for check in job.records[0].checks if isinstance(check, SharedHandles)] == [
        [SharedHandle(name="RecordFile.file", kind="file")]
    ]
    assert trials(job) == []
    assert "3 workers share the file RecordFile.file" in " ".join(done.stderr.split())


def test_workers_that_repeat_the_samples_of_a_stream_are_a_defect(launch: Launch, results: Path) -> None:
    done, job = diagnosed(launch, results, "--kind", "stream", "--workers", "3")
    (check,) = (each for each in job.records[0].checks if isinstance(each, RepeatedSamples))
    assert (check.workers, check.severity) == (3, "warning")
    assert "3 workers yield the same samples" in " ".join(done.stderr.split())
    assert trials(job) == []


def test_more_workers_of_a_stream_that_is_not_divided_are_not_tried(launch: Launch, results: Path) -> None:
    done, job = diagnosed(launch, results, "--kind", "stream", "--workers", "1")
    assert not any(isinstance(each, RepeatedSamples) for each in job.records[0].checks), "one worker repeats no other"
    verdict = job.records[0].verdict
    assert verdict is not None
    assert isinstance(verdict.next, ChangeDataLoader)
    assert verdict.next.divide_samples
    assert trials(job) == []
    assert "divide the samples among workers" in done.stderr


def test_workers_of_a_divided_stream_may_be_tried(launch: Launch, results: Path) -> None:
    _, job = diagnosed(launch, results, "--kind", "stream", "--divide", "--workers", "1")
    script = job.records[0].script
    assert script is not None
    assert script.sample_comparison == SampleComparison(workers=2, samples=300, is_stream=True)
    assert may_try(Scenario(workers=2), job.records[0])
