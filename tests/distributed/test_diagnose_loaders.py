"""Diagnoses of scripts whose loader needs another cure than workers, and fresh launches with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SUPPORT, only_job

from ddpbench.record.prediction import Scenario
from ddpbench.record.root_cause import Cause

pytestmark = [pytest.mark.slow, pytest.mark.timeout(220)]

ROWS = str(SUPPORT / "scripts" / "rows.py")
Launch = Callable[..., Any]


@pytest.mark.parametrize(
    ("kind", "cause", "scenario"),
    [
        pytest.param("tensors", "one-by-one", Scenario(resident=True), marks=[pytest.mark.cuda]),
        ("tensors", "one-by-one", Scenario(resident=True)),
        ("sampler", "slow-sampler", Scenario(ready_indices=True)),
    ],
    ids=["tensors on a GPU", "tensors", "sampler"],
)
def test_cure_of_a_slow_loader_is_found_predicted_and_tried(
    kind: str, cause: Cause, scenario: Scenario, launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(Path(ROWS).read_text())
    command = [*PLAIN, "diagnose", "--time-limit", "60", "-o", "runs", "train.py", kind]
    done = launch(command, timeout=150.0, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = only_job(tmp_path / "runs")
    verdict, diagnosis = job.records[0].verdict, job.diagnosis
    assert verdict is not None
    assert diagnosis is not None
    assert diagnosis.remedies
    assert (verdict.kind, verdict.cause) == ("data-bound", cause), done.stderr
    remedy = next(each for each in diagnosis.remedies if each.scenario == scenario)
    assert remedy.prediction is not None
    assert (remedy.prediction.gain or 0.0) > 1.3, done.stderr
    assert remedy.is_gain, done.stderr
    assert diagnosis.diff is not None
    lines = [each for each in diagnosis.diff.text.splitlines() if each.startswith("+ ")]
    resident = ["+        from ddpbench.loaders import resident", "+        loader = resident(loader)"]
    assert lines == (resident if kind == "tensors" else [])
    assert diagnosis.diff.obstacle == (None if kind == "tensors" else "by-hand")
