"""Judging a stored record again gives the stored verdict."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import records

from ddpbench.record.checks import Drift, Noisy
from ddpbench.record.io import load
from ddpbench.record.record import Job
from ddpbench.report.messages.roles import role_name

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"
STORED = [path for path in sorted(RESULTS.rglob("*.json")) if b'"schema":' in path.read_bytes()[:64]]
SCRIPT = runpy.run_path(str(RESULTS / "judge_again.py"))


def findings(job: Job) -> dict[str, Any]:
    """Results of judging by place and code, except throughput, which may include several launches or earlier runs."""
    scaling = job.scaling and job.scaling.verdict
    found: dict[str, Any] = {f"scaling verdict {scaling.kind}": scaling} if scaling else {}
    for index, record in enumerate(job.records):
        name = f"records[{index}] ({role_name(record.role)})" if role_name(record.role) else f"records[{index}]"
        found[f"{name} status {record.status}"] = record.status
        found |= {f"{name} check {check.code}": check for check in record.checks}
        found |= {f"{name} verdict {record.verdict.kind}": record.verdict} if record.verdict else {}
    return {name: msgspec.to_builtins(result) for name, result in found.items()}  # a loaded list may have been a tuple


def differences(stored: Job, judged: Job) -> Iterator[str]:
    """What differs between the stored job and the one that was judged again, one line each."""
    before, after = findings(stored), findings(judged)
    yield from (f"- {name}" for name in before if name not in after)
    yield from (f"+ {name}" for name in after if name not in before)
    yield from (f"! {name}: other values" for name in before if name in after and before[name] != after[name])
    if before == after and [*before] != [*after]:
        yield "! checks in another order"


def test_stored_records_exist() -> None:
    assert len(STORED) >= 40


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_record_is_judged_as_stored(path: Path) -> None:
    job = load(path)
    SCRIPT["judge_again"](job)
    changed, name = [*differences(load(path), job)], path.relative_to(ROOT)
    assert not changed, "\n".join([f"{name} is judged differently", *changed, f"if that is right: python results/judge_again.py {name}"])


def test_difference_names_the_codes() -> None:
    noisy, drift = Noisy(round_cv=0.02), Drift(change=0.03)

    def judged(*checks: Noisy | Drift) -> Job:
        return records.job(msgspec.structs.replace(records.record(), checks=[*checks]))

    assert list(differences(judged(noisy), judged(noisy))) == []
    assert list(differences(judged(noisy), judged(drift))) == ["- records[0] check noisy", "+ records[0] check drift"]
    assert list(differences(judged(noisy), judged(Noisy(round_cv=0.03)))) == ["! records[0] check noisy: other values"]
    assert list(differences(judged(noisy, drift), judged(drift, noisy))) == ["! checks in another order"]
