"""Judging a stored record again gives the stored verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddpbench.analysis.judge import judge_all
from ddpbench.record.io import load
from ddpbench.record.record import Job

RESULTS = Path(__file__).parents[3] / "results"
STORED = [path for path in sorted(RESULTS.rglob("*.json")) if b'"schema":' in path.read_bytes()[:64]]


def findings(job: Job) -> Any:
    """Results of judging, except throughput, which may include several launches or earlier runs."""
    return msgspec.to_builtins([job.scaling, *((record.role, record.status, record.checks, record.verdict) for record in job.records)])


def unjudged(path: Path) -> Job:
    """The job without its verdicts, checks and figures."""
    job = load(path)
    if job.scaling:
        job.scaling.verdict = None
    for record in job.records:
        record.checks, record.throughput, record.verdict = [], None, None
        record.status = "ok" if record.status == "invalid" else record.status
    return job


def test_stored_records_exist() -> None:
    assert len(STORED) >= 40


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_record_is_judged_as_stored(path: Path) -> None:
    job = unjudged(path)
    judge_all(job)
    assert findings(job) == findings(load(path))
