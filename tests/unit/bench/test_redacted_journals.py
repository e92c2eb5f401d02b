"""Redacted journals: closed by another process, resumed, or refused; pages and exports of redacted jobs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import records
from msgspec.structs import replace

from ddpbench.bench.journal import Journal, close_journal_file, new_journal
from ddpbench.bench.resume import device_slug, open_resumable_journal
from ddpbench.cli import main
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.io import load
from ddpbench.record.record import Fault, Job, Record
from ddpbench.record.request import OutputOptions, Request

PRIVATE = "/mnt/acme-images"
FRESH = replace(records.RESNET50, data_dir=PRIVATE, loader="torch", fresh=True, rounds=5)


def arm(config: ResolvedConfig = FRESH, host: str = "acme-7", rounds: int = 5) -> Record:
    environment = records.environment(2)
    placements = [replace(each, host=host) for each in environment.placements]
    record = records.record([records.BUSY] * 2, config=config, environment=replace(environment, placements=placements), status="running")
    record.rounds = record.rounds[:rounds]
    return record


def request(folder: Path, redact: bool = True) -> Request:
    output = OutputOptions(output_dir=str(folder), redact=redact)
    return Request(arms=[FRESH], output=output, command=["ddpbench", "sweep", "resnet50", "--data-dir", PRIVATE])


def journal_path(folder: Path) -> Path:
    return folder / device_slug(arm()) / "sweep.json"


def measured(folder: Path, record: Record, redact: bool = True) -> Path:
    """The journal of a sweep that was interrupted after the rounds of ``record``."""
    journal = open_resumable_journal(request(folder, redact), [record], "sweep")
    journal.close("interrupted", Fault(message="rank 1 (acme-7) was lost"))
    unlock(folder)
    return journal.path


def unlock(folder: Path) -> None:
    """Remove the lock, which a journal holds until its process ends."""
    journal_path(folder).with_name(".sweep.lock").unlink()


def is_redacted(path: Path) -> bool:
    text = path.read_text()
    return "acme" not in text and load(path).redacted and not load(path).command


def test_file_of_a_user_defined_workload_has_neutral_names(tmp_path: Path) -> None:
    asked = replace(request(tmp_path), arms=[Config(workload="slow_rank:net")], command=["ddpbench", "slow_rank:net"])
    assert new_journal(asked, [arm()]).path.name.endswith("-module-name-torch-default-synthetic.json")


def test_journal_is_redacted_from_the_first_write_on(tmp_path: Path) -> None:
    journal = Journal(replace(records.job(arm()), redacted=True), tmp_path / "run.json")
    assert is_redacted(journal.path)
    assert journal.job.records[0].environment.placements[0].host == "acme-7"


def test_redacted_journal_is_resumed_on_the_hosts_and_data_of_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = measured(tmp_path, arm(rounds=2))
    assert is_redacted(path)
    resumed = open_resumable_journal(request(tmp_path), [arm(rounds=0)], "sweep")
    (record,) = resumed.job.records
    assert (record.status, len(record.rounds), record.relocations) == ("running", 2, [])
    assert (record.environment.placements[0].host, record.config.data_dir) == ("acme-7", PRIVATE)
    assert capsys.readouterr().err == f"ddpbench: note: '{path}' is redacted: its rounds are assumed to be from the same hosts and data\n"
    resumed.add_round(0, arm().rounds[2])
    assert is_redacted(path)
    assert len(load(path).records[0].rounds) == 3


def test_resumed_journal_stays_redacted_without_the_flag(tmp_path: Path) -> None:
    path = measured(tmp_path, arm(rounds=2))
    open_resumable_journal(request(tmp_path, redact=False), [arm(rounds=0)], "sweep")
    assert is_redacted(path)


def test_journal_is_redacted_when_it_is_resumed_with_the_flag(tmp_path: Path) -> None:
    path = measured(tmp_path, arm(rounds=2), redact=False)
    assert not is_redacted(path)
    open_resumable_journal(request(tmp_path), [arm(rounds=0)], "sweep")
    assert is_redacted(path)


def test_redacted_journal_of_another_command_is_refused_without_its_command(tmp_path: Path) -> None:
    path = measured(tmp_path, arm(rounds=2))
    with pytest.raises(UsageError) as refused:
        open_resumable_journal(request(tmp_path), [arm(replace(FRESH, batch_size=8))], "sweep")
    assert refused.value.message == f"'{path}' is the journal of another command"


@pytest.mark.parametrize("own", [{"workload": "acme.models:net"}, {"loader": "acme.loading:train"}], ids=lambda own: next(iter(own)))
def test_redacted_journal_of_a_user_defined_entry_is_not_resumed(own: dict[str, str], tmp_path: Path) -> None:
    config = replace(FRESH, **own)
    path = measured(tmp_path, arm(config, rounds=2))
    kept = path.read_bytes()
    with pytest.raises(UsageError) as refused:
        open_resumable_journal(request(tmp_path), [arm(config, rounds=0)], "sweep")
    assert refused.value.message == f"'{path}' is redacted and does not name its workload or loader, so it cannot be resumed"
    assert path.read_bytes() == kept


def test_record_closed_by_another_rank_stays_redacted(tmp_path: Path) -> None:
    record = arm(rounds=2)
    journal = Journal(replace(records.job(record), redacted=True), tmp_path / "run.json")
    close_journal_file(journal.path, "failed", Fault(message="rank 0 (acme-7) killed"), record.environment.placements)
    (closed,) = load(journal.path).records
    assert is_redacted(journal.path)
    assert closed.fault == Fault(message="rank 0 (node-0) killed")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A record with private names, as measured without ``--redact``."""
    job = replace(records.job(arm()), command=["ddpbench", "resnet50", "--data-dir", PRIVATE])
    return Journal(job, tmp_path / "acme.json").path


@pytest.mark.parametrize("format", ["terminal", "json", "csv", "markdown"])
def test_report_of_a_record_is_redacted_in_every_format(format: str, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = kept.read_bytes()
    assert main(["report", str(kept), "--format", format]) == 0
    assert "acme" in capsys.readouterr().out
    assert main(["report", str(kept), "--format", format, "--redact", *(["-v"] if format == "terminal" else [])]) == 0
    printed = capsys.readouterr().out
    assert "acme" not in printed
    assert "node-0" in printed
    assert socket.gethostname() not in printed.split()
    assert kept.read_bytes() == before, "the input is never changed"


def test_redacted_json_is_a_record_that_says_so(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(kept), "--format", "json", "--redact"])
    shared = tmp_path / "shared.json"
    shared.write_text(capsys.readouterr().out)
    job: Job = load(shared)
    assert job.redacted
    assert job.records[0].rounds == load(kept).records[0].rounds
    assert main(["report", str(shared), "--format", "markdown"]) == 0
    assert "command redacted" in capsys.readouterr().out
