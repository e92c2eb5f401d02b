"""``--fail-if-data-wait``: exit 4 if ranks wait for data too long, and rejected values."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import records
from launches import PLAIN, SMALL, SUPPORT_ENV, TORCHRUN, errors, only_job, only_record

from ddpbench.bench.gate import gate_error
from ddpbench.cli import main
from ddpbench.record.config import Config

pytestmark = pytest.mark.timeout(110)

SLOW = ["misbehaving:fine", *SMALL, "--rounds", "1", "--loader", "slow_loader:slow"]


@pytest.mark.slow
def test_run_above_the_data_wait_limit_exits_4(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, *SLOW, "--fail-if-data-wait", "5%", "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 4
    (said,) = errors(done.stderr)
    assert said.startswith("the rank waits for data ")
    assert said.endswith("% of the time, but --fail-if-data-wait allows 5%")
    assert only_record(results).status == "ok", "the run itself succeeded"
    assert "images/s" in done.stdout, "the report is printed"


@pytest.mark.slow
def test_run_below_the_data_wait_limit_exits_0(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, *SLOW, "--fail-if-data-wait", "99.9%", "-o", str(results)], env={**SUPPORT_ENV, "DELAY_S": "0"})
    assert (done.returncode, errors(done.stderr)) == (0, [])


@pytest.mark.slow
def test_launched_ranks_pass_on_exit_4_if_any_arm_fails_the_gate(launch: Callable[..., Any], results: Path) -> None:
    both = [*SLOW[:-1], "synthetic,slow_loader:slow", "--fail-if-data-wait", "5%", "--gpus", "2"]
    done = launch([*PLAIN, *both, "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 4
    (said,) = errors(done.stderr)
    assert said.startswith("slow_loader:slow: the ranks wait ")


@pytest.mark.slow
def test_data_wait_gate_fails_under_torchrun(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*TORCHRUN, *SLOW, "--fail-if-data-wait", "5%", "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 1
    assert len(errors(done.stderr)) == 1


@pytest.mark.slow
def test_diagnosis_applies_the_gate_to_its_baseline(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, "diagnose", *SLOW, "--no-verify", "--fail-if-data-wait", "5%", "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 4
    assert len(errors(done.stderr)) == 1
    assert only_job(results).kind == "diagnose"


def test_unmeasured_arm_does_not_pass_the_gate() -> None:
    configs = [msgspec.structs.replace(records.RESNET50, loader=loader, fail_if_data_wait=99.0) for loader in ("synthetic", "torch")]
    idle, unseen = (records.data_bound(config=config) for config in configs)
    both = records.job(idle, msgspec.structs.replace(unseen, rounds=[]), swept=["loader"])
    error = gate_error(both.records, both)
    assert error is not None
    assert (error.exit_code, error.message) == (1, "torch: not measured, so --fail-if-data-wait cannot check its data wait")
    seen = records.job(idle, unseen, swept=["loader"])
    assert gate_error(seen.records, seen) is None
    alone = records.job(msgspec.structs.replace(idle, rounds=[]))
    assert gate_error(alone.records, alone) is None, "synthetic data have no data wait"


@pytest.mark.parametrize("value", ["5", "0%", "100%", "-1%", "5%%", "%", "five%", "nan%", "inf%", "5,6%", "5 %"])
@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_invalid_percentage_is_rejected(command: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "resnet18", "--fail-if-data-wait", value])
    assert end.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert "--fail-if-data-wait" in error
    assert hint in ("hint: use a number above 0% and below 100%, with the % sign", "hint: all arms of a job share it")


@pytest.mark.parametrize("words", ["resnet18 --fail-if-data-wait 5%", "resnet18 --fail-if-data-wait 5% --loader synthetic"])
def test_gate_on_synthetic_data_is_rejected(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*shlex.split(words), "--device", "cpu"])
    assert end.value.code == 2
    assert "--fail-if-data-wait has no effect on synthetic data: " in capsys.readouterr().err


def test_gate_flag_round_trips_through_argv() -> None:
    assert Config(workload="resnet18", fail_if_data_wait=5.0).to_argv() == ["resnet18", "--fail-if-data-wait", "5%"]
