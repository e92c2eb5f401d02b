"""A record that nobody closed: its run goes on, or was cut off, and shows what its rounds gave."""

from __future__ import annotations

import csv
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
    """The file of a run whose process saved two of five rounds, and judged nothing yet."""
    path = folder / "20261122T000000Z-resnet50.json"
    save(records.job(*arms, swept=swept), path)
    return path


def unfinished(host: str, pid: int, rounds: int = 2) -> Record:
    place = records.environment(1)
    here = [replace(each, host=host, pid=pid) for each in place.placements]
    longer = [1.0, 1.001, 1.0, 1.002, 1.0][:rounds]
    return records.record([records.BUSY], longer=longer, status="running", environment=replace(place, placements=here))


def gone() -> int:
    """The id of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def reported(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", str(path)]) == 0
    return capsys.readouterr().out


def test_a_run_that_was_cut_off_shows_what_its_rounds_gave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = left_running(tmp_path, unfinished(socket.gethostname(), gone()))
    before = path.read_bytes()
    printed = reported(path, capsys)
    assert "\ninterrupted: cut off, its process is gone, 2 of 5 rounds\n" in printed
    for told in ("INCONCLUSIVE   2 rounds and 40 steps", "throughput   5,7", "\nstep time by phase ", "warning  too-short"):
        assert told in printed
    assert path.read_bytes() == before


def test_a_run_that_goes_on_is_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = reported(left_running(tmp_path, unfinished(socket.gethostname(), os.getpid())), capsys)
    assert "\nrunning, 2 of 5 rounds\n" in printed
    assert "throughput   5,7" in printed


def test_a_process_that_nobody_has_buried_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        assert ended.stdout
        ended.stdout.read()  # to its end, which is the process's
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert "cut off" in reported(left_running(tmp_path, unfinished(socket.gethostname(), ended.pid)), capsys)


def test_a_process_that_is_younger_than_the_record_is_another_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = left_running(tmp_path, unfinished(socket.gethostname(), os.getpid()))
    os.utime(path, (1.0, 1.0))
    assert "cut off" in reported(path, capsys)


def test_of_another_host_nobody_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = reported(left_running(tmp_path, unfinished("node-99", os.getpid())), capsys)
    assert "interrupted: cut off, its process is gone, or it still runs on node-99, 2 of 5 rounds" in " ".join(printed.split())


def test_nodes_that_share_a_name_are_asked_for_their_process_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = f"{socket.gethostname()}#1"
    assert "\nrunning, 2 of 5 rounds\n" in reported(left_running(tmp_path, unfinished(host, os.getpid())), capsys)
    printed = reported(left_running(tmp_path, unfinished(host, gone())), capsys)
    assert f"cut off, its process is gone, or it still runs on {host}," in " ".join(printed.split()), "it may be the other of them"


def test_an_arm_that_was_whole_before_its_job_was_cut_off_is_no_less(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, other = unfinished(socket.gethostname(), pid := gone(), rounds=5), unfinished(socket.gethostname(), pid, rounds=4)
    other.config = replace(other.config, precision="fp32")
    printed = reported(left_running(tmp_path, whole, other, swept=["precision"]), capsys)
    assert "fp32 interrupted: cut off, its process is gone, 4 of 5 rounds" in printed
    assert "amp-fp16 interrupted" not in printed


def test_the_csv_of_a_run_that_was_cut_off_has_its_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = left_running(tmp_path, unfinished(socket.gethostname(), gone()))
    assert main(["report", str(path), "--format", "csv"]) == 0
    [row] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (row["status"], row["rounds_done"], row["samples_per_s"][:2]) == ("interrupted", "2", "57")


def test_a_diagnosis_that_was_cut_off_is_judged_by_what_it_measured_around_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(job := diagnoses.loader_contends_gpu(), path := tmp_path / "diagnosis.json")
    found = [line for line in reported(path, capsys).splitlines() if "LOADER-CONTENDS-GPU" in line]
    for record in job.records:
        record.status, record.checks, record.throughput, record.verdict = "running", [], None, None
        record.rounds.pop()
    save(job, path)
    printed = reported(path, capsys)
    assert "20 of 25 rounds" in " ".join(printed.split()), "of the five trainings"
    assert len(found) == 1
    assert found[0] in printed
