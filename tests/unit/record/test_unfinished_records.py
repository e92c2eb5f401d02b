"""Unfinished records: the run is still running, or its process is gone; finished rounds are reported."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import diagnoses
import pytest
import records
from msgspec.structs import replace

from ddpbench.cli import main
from ddpbench.record.io import save
from ddpbench.record.record import Record


def left_running(folder: Path, *arms: Record, swept: Sequence[str] = ()) -> Path:
    """The file of a run that saved two of five rounds and has no verdict yet."""
    path = folder / "20261122T000000Z-resnet50.json"
    save(records.job(*arms, swept=swept), path)
    return path


def unfinished(host: str, pid: int, rounds: int = 2) -> Record:
    place = records.environment(1)
    here = [replace(each, host=host, pid=pid) for each in place.placements]
    slowdowns = [1.0, 1.001, 1.0, 1.002, 1.0][:rounds]
    return records.record([records.BUSY], longer=slowdowns, status="running", environment=replace(place, placements=here))


def exited_pid() -> int:
    """The ID of a process that has exited."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def reported(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", str(path)]) == 0
    return capsys.readouterr().out


def test_interrupted_run_reports_its_finished_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = left_running(tmp_path, unfinished(socket.gethostname(), exited_pid()))
    before = path.read_bytes()
    printed = reported(path, capsys)
    assert "\ninterrupted: its process is gone, 2 of 5 rounds\n" in printed
    for text in ("COMPUTE-BOUND   compute takes", "throughput   5,7", "\nstep time by phase ", "warning  too-short"):
        assert text in printed
    assert path.read_bytes() == before


def test_run_with_a_live_process_is_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = reported(left_running(tmp_path, unfinished(socket.gethostname(), os.getpid())), capsys)
    assert "\nrunning, 2 of 5 rounds\n" in printed
    assert "throughput   5,7" in printed


def test_summary_of_a_running_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = left_running(tmp_path, unfinished(socket.gethostname(), os.getpid()))
    assert main(["report", "--format", "summary", str(path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["status"], summary["figure"]["rounds"]) == ("running", 2)


def test_zombie_process_counts_as_exited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        assert ended.stdout
        ended.stdout.read()  # until the process exits
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert "its process is gone" in reported(left_running(tmp_path, unfinished(socket.gethostname(), ended.pid)), capsys)


def test_process_started_after_the_record_is_a_different_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = left_running(tmp_path, unfinished(socket.gethostname(), os.getpid()))
    os.utime(path, (1.0, 1.0))
    assert "its process is gone" in reported(path, capsys)


def test_process_on_another_host_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = reported(left_running(tmp_path, unfinished("node-99", os.getpid())), capsys)
    assert "interrupted: its process is gone, or it still runs on node-99, 2 of 5 rounds" in " ".join(printed.split())


def test_process_is_looked_up_on_nodes_that_share_a_host_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = f"{socket.gethostname()}#1"
    assert "\nrunning, 2 of 5 rounds\n" in reported(left_running(tmp_path, unfinished(host, os.getpid())), capsys)
    printed = reported(left_running(tmp_path, unfinished(host, exited_pid())), capsys)
    assert f"its process is gone, or it still runs on {host}," in " ".join(printed.split()), "it may be on the other node"


def test_finished_arm_of_an_interrupted_job_is_not_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished, other = unfinished(socket.gethostname(), pid := exited_pid(), rounds=5), unfinished(socket.gethostname(), pid, rounds=4)
    other.config = replace(other.config, precision="fp32")
    printed = reported(left_running(tmp_path, finished, other, swept=["precision"]), capsys)
    assert "fp32 interrupted: its process is gone, 4 of 5 rounds" in printed
    assert "amp-fp16 interrupted" not in printed


def test_csv_of_an_interrupted_run_has_its_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = left_running(tmp_path, unfinished(socket.gethostname(), exited_pid()))
    assert main(["report", str(path), "--format", "csv"]) == 0
    [row] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (row["status"], row["rounds_done"], row["samples_per_s"][:2]) == ("interrupted", "2", "57")


def test_interrupted_diagnosis_is_judged_by_its_control_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(job := diagnoses.loader_contends_gpu(), path := tmp_path / "diagnosis.json")
    found = [line for line in reported(path, capsys).splitlines() if "LOADER-CONTENDS-GPU" in line]
    for record in job.records:
        record.status, record.checks, record.throughput, record.verdict = "running", [], None, None
        record.rounds.pop()
    save(job, path)
    printed = reported(path, capsys)
    assert "20 of 25 rounds" in " ".join(printed.split()), "of all five arms"
    assert len(found) == 1
    assert found[0] in printed
