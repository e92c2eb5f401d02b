"""Interrupted runs: finished rounds are kept, one error line is printed and no process is left."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import FAULT_REPORT_S, PLAIN, SMALL, SUPPORT_ENV, TORCHRUN, TORCHRUN_S, errors, only_record, rounds_on_disk

import ddpbench

GPUS = [*PLAIN, "--gpus", "2"]
ENDLESS = ["misbehaving:fine", *SMALL, "--rounds", "100000"]

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def endless(start: Callable[..., Any], results: Path) -> Callable[..., Any]:
    """Start an endless run under ``launcher`` and return it once two rounds are on disk."""

    def go(*launcher: str) -> Any:
        running = start([*launcher, *ENDLESS, "-o", str(results)], env=SUPPORT_ENV)
        running.until(lambda: rounds_on_disk(results) >= 2)
        return running

    return go


def interrupted_by(sent: signal.Signals, done: Any, results: Path) -> bool:
    """Whether one error line states the signal and the finished rounds, and the record agrees."""
    record, (said,) = only_record(results), errors(done.stderr)
    rounds = re.fullmatch(rf"interrupted by {sent.name}, (\d+) of 100,000 rounds", said)
    in_record = (record.status, record.fault and record.fault.message) == ("interrupted", f"interrupted by {sent.name}")
    return in_record and rounds is not None and 2 <= int(rounds[1]) == len(record.rounds)


def own_traceback(stderr: str) -> bool:
    """Whether a traceback contains a ddpbench frame; torchrun also prints tracebacks."""
    return f'File "{Path(ddpbench.__file__).parent}' in stderr


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 143, marks=pytest.mark.slow),
    ],
)
def test_signal_without_launcher_keeps_finished_rounds(endless: Callable[..., Any], results: Path, sent: signal.Signals, code: int) -> None:
    running = endless(*PLAIN)
    os.kill(running.pid, sent)
    done = running.wait(FAULT_REPORT_S)
    assert done.returncode == code
    assert interrupted_by(sent, done, results)
    assert "Traceback" not in done.stderr
    assert re.search(rf"^interrupted by {sent.name}, \d+ of 100,000 rounds$", done.stdout, re.MULTILINE)
    assert "images/s" in done.stdout, "the report of the finished rounds"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="which libraries a process has loaded cannot be seen here")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("imported", ["psutil", "libtorch"])
def test_signal_during_imports_is_reported(
    start: Callable[..., Any], results: Path, imported: str, sent: signal.Signals, code: int
) -> None:
    """During our imports, when Python prints a traceback or nothing, and torch's, which may swallow exceptions."""
    running = start([*PLAIN, *ENDLESS, "-o", str(results)], env=SUPPORT_ENV)
    running.until(lambda: imported in Path(f"/proc/{running.pid}/maps").read_text())
    os.kill(running.pid, sent)
    done = running.wait(FAULT_REPORT_S)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"ddpbench: error: interrupted by {sent.name}\n")
    assert not results.exists()


@pytest.mark.slow
def test_signal_to_torchrun_keeps_finished_rounds_and_leaves_no_process(endless: Callable[..., Any], results: Path) -> None:
    running = endless(*TORCHRUN)
    os.kill(running.pid, signal.SIGTERM)
    done = running.wait(FAULT_REPORT_S + TORCHRUN_S)
    assert running.left_behind() == []
    assert interrupted_by(signal.SIGTERM, done, results)
    assert not own_traceback(done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [GPUS, TORCHRUN], ids=["--gpus", "torchrun"])
def test_ctrl_c_to_the_process_group_is_reported_once(endless: Callable[..., Any], results: Path, launcher: list[str]) -> None:
    """A terminal sends Ctrl-C to every process of the foreground process group."""
    running = endless(*launcher)
    os.killpg(running.pid, signal.SIGINT)
    done = running.wait(FAULT_REPORT_S + TORCHRUN_S)
    assert running.left_behind() == []
    assert done.returncode == (1 if launcher is TORCHRUN else 130)
    assert interrupted_by(signal.SIGINT, done, results)
    assert not own_traceback(done.stderr)
    assert launcher is TORCHRUN or "Traceback" not in done.stderr
    assert "images/s" in done.stdout, "the report of the finished rounds"


@pytest.mark.slow
def test_sigterm_to_gpus_launcher_is_forwarded(endless: Callable[..., Any], results: Path) -> None:
    running = endless(*GPUS)
    os.kill(running.pid, signal.SIGTERM)
    done = running.wait(FAULT_REPORT_S + TORCHRUN_S)
    assert running.left_behind() == []
    assert done.returncode == 143
    assert interrupted_by(signal.SIGTERM, done, results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "processes", "code"),
    [
        pytest.param(signal.SIGTERM, 2, 143, id="SIGTERM while torchrun starts"),
        pytest.param(signal.SIGINT, 4, 130, id="SIGINT while ranks start"),
        pytest.param(signal.SIGUSR1, 4, 143, id="SIGUSR1 while ranks start"),
    ],
)
def test_signal_before_rendezvous_is_reported_once(
    start: Callable[..., Any], results: Path, sent: signal.Signals, processes: int, code: int
) -> None:
    """While torch is imported Python prints a traceback at Ctrl-C or ignores it, and SIGTERM ends it silently."""
    running = start([*GPUS, *ENDLESS, "-o", str(results)], env=SUPPORT_ENV)
    running.until(lambda: len(running.survivors()) >= processes)
    time.sleep(0.3)
    os.kill(running.pid, sent)
    done = running.wait(FAULT_REPORT_S + TORCHRUN_S)
    assert running.left_behind() == []
    assert done.returncode == code
    assert errors(done.stderr) == [f"interrupted by {sent.name} before the ranks were ready"]
    assert "Traceback" not in done.stderr
    assert not results.exists()


@pytest.mark.slow
def test_repeated_ctrl_c_has_no_further_effect(endless: Callable[..., Any], results: Path) -> None:
    running = endless(*PLAIN)
    for _ in range(3):
        os.kill(running.pid, signal.SIGINT)
        time.sleep(0.1)  # signals sent at once count as one
    done = running.wait(FAULT_REPORT_S)
    assert done.returncode == 130
    assert interrupted_by(signal.SIGINT, done, results)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [TORCHRUN, GPUS], ids=["torchrun", "--gpus"])
def test_ranks_exit_if_their_launcher_is_killed(endless: Callable[..., Any], results: Path, launcher: list[str]) -> None:
    running = endless(*launcher)
    assert len(running.survivors()) >= 3, "the launcher and two ranks"
    os.kill(running.pid, signal.SIGKILL)
    assert running.left_behind(FAULT_REPORT_S) == []
    record = only_record(results)
    assert record.status in ("interrupted", "failed")
    assert len(record.rounds) >= 2


@pytest.mark.slow
def test_ranks_exit_if_the_launcher_of_another_node_is_killed(start: Callable[..., Any], results: Path, free_port: int) -> None:
    """The shared store survives with the other node's launcher."""
    meeting = [
        "--nnodes=2",
        "--nproc_per_node=1",
        "--rdzv_backend=c10d",
        f"--rdzv_endpoint=localhost:{free_port}",
        "--local_addr=localhost",
    ]
    host, other = (
        start(
            [*TORCHRUN[:3], *meeting, f"--rdzv_conf=is_host={is_host}", *TORCHRUN[-2:], *ENDLESS, "-o", str(results)],
            env=SUPPORT_ENV,
        )
        for is_host in (1, 0)
    )
    other.until(lambda: rounds_on_disk(results) >= 2)
    os.kill(other.pid, signal.SIGKILL)
    assert other.left_behind(FAULT_REPORT_S) == []
    assert host.wait(FAULT_REPORT_S + TORCHRUN_S).returncode == 1
    assert host.left_behind() == []
    assert only_record(results).status == "interrupted"
