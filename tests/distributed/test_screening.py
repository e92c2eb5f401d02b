"""Settings of computing, screened inside a user's script: alone, on two ranks, and in a script that one of them breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import SUPPORT, TORCHRUN

from ddpbench.machine.fingerprint import emulates_bfloat16
from ddpbench.record.io import load
from ddpbench.record.record import Job
from ddpbench.record.remedy import ScreenedRemedy
from ddpbench.record.screening import ScreenedCure
from ddpbench.report.summarize_job import summarize_job
from ddpbench.script.cures.catalog import CURES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

QUICK = str(SUPPORT / "quick_screening.py")
LAUNCHERS = {1: [sys.executable, QUICK], 2: [*TORCHRUN[:-2], QUICK]}
SETTINGS = str(SUPPORT / "scripts" / "settings.py")
Launch = Callable[..., Any]


def only_diagnosis(results: Path) -> Job:
    """The only one. A proof may have followed, of what other load made seem faster."""
    (job,) = [job for path in results.glob("*.json") for job in [load(path)] if job.kind == "diagnose"]
    return job


def screened(results: Path) -> dict[str, ScreenedCure]:
    """The first trial of each cure."""
    job = only_diagnosis(results)
    assert job.diagnosis
    assert job.diagnosis.screening
    return {each.code: each for each in reversed(job.diagnosis.screening.cures)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_settings_are_screened_and_none_is_left_switched_on(launch: Launch, results: Path, ranks: int) -> None:
    done = launch([*LAUNCHERS[ranks], "diagnose", "--time-limit", "40", "-o", str(results), SETTINGS], timeout=150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("settings kept") == ranks, done.stdout
    found = screened(results)
    assert {*CURES} == found.keys()
    assert len(found["null"].without_s) == len(found["null"].with_s) == 6
    assert found["null"].first_use_s is not None
    tried = [each for each in found.values() if each.obstacle is None]
    assert all(len(each.with_s) == 6 and not each.failure for each in tried)
    record = only_diagnosis(results).records[0]
    assert record.config.precision == "torch-default", "autocast was not the script's own"
    assert "settings of computing  measured (95%)" in done.stderr
    assert "ddpbench: trying channels-last, at most " in done.stderr
    statuses = {each.code: each.status for each in summarize_job(only_diagnosis(results)).remedies if each.code in found}
    assert len(statuses) == len(CURES) - 1  # the null cure is no remedy
    assert set(statuses.values()) <= {"screened", "screened-no-gain", "cannot-be-tried"}


@pytest.mark.skipif(emulates_bfloat16(), reason="no bfloat16 on this CPU")
@pytest.mark.parametrize("ranks", [1, 2])
def test_script_that_a_setting_breaks_is_no_failure_of_the_script(launch: Launch, results: Path, ranks: int) -> None:
    done = launch([*LAUNCHERS[ranks], "diagnose", "--time-limit", "60", "-o", str(results), SETTINGS, "--no-bfloat16"], timeout=150)
    assert "TypeError: no bfloat16, please" in done.stderr
    assert "note: settings.py ended with this error while bf16-autocast was tried in it" in done.stderr
    job = only_diagnosis(results)
    assert (job.records[0].status, job.records[0].fault) == ("ok", None)
    found = screened(results)
    assert found["bf16-autocast"].failure == "TypeError: no bfloat16, please"
    assert len(found["null"].with_s) == 6, "what was measured before"
    assert job.diagnosis
    remedies = [each for each in job.diagnosis.remedies or () if isinstance(each, ScreenedRemedy)]
    assert [each.failure for each in remedies if each.code == "bf16-autocast"] == ["TypeError: no bfloat16, please"]
    assert "failed: TypeError: no bfloat16, please" in " ".join(done.stderr.split())
    assert ranks == 2 or done.returncode == 0


def test_without_trials_nothing_is_screened(launch: Launch, results: Path) -> None:
    done = launch([*LAUNCHERS[1], "diagnose", "--time-limit", "20", "--no-verify", "-o", str(results), SETTINGS], timeout=150)
    assert done.returncode == 0, done.stderr
    job = only_diagnosis(results)
    assert job.diagnosis
    assert job.diagnosis.screening is None or not job.diagnosis.screening.cures
