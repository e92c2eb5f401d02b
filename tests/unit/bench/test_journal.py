"""Journals: closing, freezing, and the target of ``--json``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import invalid_records
import msgspec
import pytest
import records
from full_disk import limited_file_size

from ddpbench.bench.journal import Journal, close_records, print_and_write_json, write_json
from ddpbench.bench.resume import ResumeState, device_slug, open_resumable_journal
from ddpbench.record import io
from ddpbench.record.errors import ConfigFailed, UsageError
from ddpbench.record.io import load, save
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Fault, Job, PeakThroughput
from ddpbench.record.request import OutputOptions, Request
from ddpbench.record.roles import trial_role


def test_closing_reads_each_earlier_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in (1, 2, 3):
        save(records.job(records.record()), tmp_path / f"2026110{day}T000000Z-resnet50.json")
    arms = [records.record(config=msgspec.structs.replace(records.RESNET50, batch_size=size), status="running") for size in (32, 64, 128)]
    journal = Journal(records.job(*arms, swept=["batch_size"]), tmp_path / "20261104T000000Z-resnet50.json")
    read = []

    def counting(path: Path) -> Job:
        read.append(path.name)
        return load(path)

    monkeypatch.setattr(io, "load", counting)
    journal.close("ok")
    assert sorted(read) == [f"2026110{day}T000000Z-resnet50.json" for day in (1, 2, 3, 4)]
    assert [record.throughput is not None for record in journal.job.records] == [True] * 3


@pytest.mark.parametrize("wrong", invalid_records.DEFECTS)
def test_bad_file_in_the_output_folder_does_not_prevent_closing(tmp_path: Path, wrong: str) -> None:
    invalid_records.write(tmp_path / "20261103T000000Z-bad.json", wrong)
    journal = Journal(records.job(records.record(status="running")), tmp_path / "20261104T000000Z-resnet50.json")
    journal.close("ok")
    (closed,) = load(journal.path).records
    assert (closed.status, closed.throughput is not None) == ("ok", True)


@pytest.mark.parametrize("force", [True, False])
def test_full_disk_leaves_no_partial_file(tmp_path: Path, force: bool) -> None:
    target = tmp_path / "run.json"
    if force:
        target.write_text("mine")
    with limited_file_size(), pytest.raises(OSError, match="File too large"):
        write_json(records.job(records.record()), str(target), force)
    assert [path.read_text() for path in tmp_path.iterdir()] == (["mine"] if force else [])


def test_record_that_cannot_be_judged_is_closed_nevertheless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_none(*_: object) -> None:
        raise ZeroDivisionError

    journal = Journal(records.job(records.record(status="running")), tmp_path / "run.json")
    monkeypatch.setattr("ddpbench.analysis.judge.judge_all", judge_none)
    with pytest.raises(ZeroDivisionError):
        journal.close("interrupted", Fault(message="interrupted by SIGTERM"))
    assert load(journal.path).records[0].status == "interrupted"


def test_json_is_written_to_file_pipe_or_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = records.job(records.record())
    write_json(job, str(tmp_path / "run.json"), force=False)
    assert load(tmp_path / "run.json") == job
    small = Job(started=job.started, command=job.command, records=[])  # fits into a pipe buffer
    reader, writer = os.pipe()
    write_json(small, f"/dev/fd/{writer}", force=True)
    write_json(small, "-", force=False)
    assert os.read(reader, 2**16).decode() == capsys.readouterr().out
    os.close(reader)
    os.close(writer)


def test_summary_is_written_beside_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, target = records.job(records.record()), tmp_path / "summary.json"
    assert print_and_write_json(job, tmp_path / "run.json", OutputOptions(summary=str(target), quiet=True)) == ""
    assert json.loads(target.read_text())["record"] == str(tmp_path / "run.json")
    gone = tmp_path / "removed" / "summary.json"
    error = print_and_write_json(job, None, OutputOptions(summary=str(gone), quiet=True))
    assert error == f"cannot save {gone}: No such file or directory"
    assert "images/s" in capsys.readouterr().out


def test_frozen_journal_ignores_further_rounds(tmp_path: Path) -> None:
    """The main thread may still measure while the signal thread closes the file."""
    arms = [records.record(status="running") for _ in range(2)]
    journal = Journal(records.job(*arms, swept=["batch_size"]), tmp_path / "20261104T000000Z-resnet50.json")
    assert journal.add_arms([records.record(role=trial_role(Scenario(workers=4)), status="running")]) == 2
    assert len(load(journal.path).records) == 3
    journal.freeze()
    journal.close("interrupted", Fault(message="interrupted by SIGTERM"))
    closed = journal.path.read_bytes()
    journal.add_arms([records.record(role=trial_role(Scenario(workers=8)), status="running")])
    journal.fail_arm(0, ConfigFailed("there is no room for it"))
    journal.update_arm(0, peak_throughput=PeakThroughput(matmul_tflops={"fp32": 1.0}))
    journal.add_round(0, journal.job.records[1].rounds[0])
    journal.save()
    assert journal.path.read_bytes() == closed


def test_only_the_out_of_memory_arm_is_not_retried() -> None:
    cells = [records.record([{"forward": 1.0}]) for _ in range(3)]
    for cell in cells:
        cell.rounds, cell.status = [], "running"
    close_records(cells, "failed", Fault(message="out of memory at batch 8 on rank 1", arm_index=1, out_of_memory=True))
    assert [ResumeState.from_record(cell).cannot_continue for cell in cells] == [False, True, False]
    assert [cell.fault and cell.fault.message.partition(":")[0] for cell in cells] == [
        "stopped because another arm failed",
        "out of memory at batch 8 on rank 1",
        "stopped because another arm failed",
    ]


def test_damaged_journal_is_rejected_and_kept(tmp_path: Path) -> None:
    made = records.record([{"forward": 1.0}])
    request = Request(
        arms=[made.config], output=OutputOptions(output_dir=str(tmp_path)), command=["ddpbench", "sweep", "resnet18"], swept=[]
    )
    path = tmp_path / device_slug(made) / "sweep.json"
    path.parent.mkdir()
    path.write_text('{"schema": 2, "started": "2026')
    with pytest.raises(UsageError, match="truncated or invalid JSON") as refused:
        open_resumable_journal(request, [made], "sweep")
    assert str(path) in refused.value.message
    assert refused.value.hint == "move it away, or choose another folder with -o DIR"
    assert path.read_text() == '{"schema": 2, "started": "2026', "nothing is lost"
