"""Scripts that are watched: alone, under torchrun and Accelerate, and in every way that a script can end."""

from __future__ import annotations

import ast
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SUPPORT, TORCHRUN, errors, only_job, only_record

from ddpbench.record.checks import MeasurementTooShort
from ddpbench.record.io import load
from ddpbench.record.record import Record
from ddpbench.record.verdict import ChangeDataLoader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

TRAIN = str(SUPPORT / "scripts" / "train.py")
Launch = Callable[..., Any]


def phase_ms(record: Record, phase: str, rank: int = 0) -> float:
    traces = record.traces_by_rank[rank]
    return sum(trace.total_ms(phase) for trace in traces) / sum(trace.steps for trace in traces)


@pytest.fixture(scope="module")
def plain(launch_once: Launch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A script on its own, the same script watched, and its results."""
    results = tmp_path_factory.mktemp("runs")
    script = [TRAIN, "--epochs", "4", "--sample-ms", "1", "--validate", "--save"]
    bare = launch_once([sys.executable, *script], cwd=tmp_path_factory.mktemp("bare"))
    return bare, launch_once([*PLAIN, "watch", "-o", str(results), *script], cwd=results.parent), results


def test_watched_script_prints_and_computes_the_same(plain: tuple[Any, Any, Path]) -> None:
    bare, watched, _ = plain
    assert (watched.stdout, watched.returncode) == (bare.stdout, 0)
    assert "weights" in bare.stdout
    assert bare.stderr == ""


def test_plain_loop_gives_a_page_and_a_record(plain: tuple[Any, Any, Path]) -> None:
    _, watched, results = plain
    job = only_job(results)
    (record,) = job.records
    assert (job.kind, record.status, record.world_size) == ("watch", "ok", 1)
    assert (record.config.workload, record.config.loader, record.config.batch_size) == ("train.py", "DataLoader", 8)
    assert [timed.traces[0].steps for timed in record.rounds] == [40] * 3, "whole epochs but for the first"
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.cause) == ("data-bound", None)
    assert isinstance(record.verdict.next, ChangeDataLoader | None)
    assert phase_ms(record, "data") >= 8
    assert record.script is not None
    assert (record.script.model, record.script.optimizers) == ("Sequential", ["SGD"])
    assert {"batch_size", "lr", "workers"} <= set(record.script.observed_settings)
    assert {"augment", "image_size", "schedule"}.isdisjoint(record.script.observed_settings), "a script has none of them"
    assert (record.script.batches, record.script.epochs, record.script.num_samples) == (160, 4, 320)
    assert set(record.script.outside_s) == {"validation", "checkpoint", "between-epochs"}
    assert record.script.outside_s["validation"] >= 4 * 8 * 0.005
    assert [type(check) for check in record.checks if check.severity == "info"] == [MeasurementTooShort]
    first, *page = watched.stderr.splitlines()
    assert first.startswith("ddpbench: watching train.py; record: ")
    assert page[0].startswith("ddpbench watch  train.py  ")
    assert watched.stderr.rstrip().endswith(".json")


def test_report_prints_the_same_page(plain: tuple[Any, Any, Path], launch: Launch) -> None:
    _, watched, results = plain
    (path,) = results.glob("*.json")
    printed = launch([*PLAIN, "report", str(path)], cwd=results.parent).stdout
    assert printed.splitlines()[:-1] == page_lines(watched.stderr)[:-1]


def page_lines(stderr: str) -> list[str]:
    """The lines of the report, after what is printed while the script runs."""
    return [line for line in stderr.splitlines() if not line.startswith("ddpbench: ")]


def test_training_with_a_loss_that_is_nan_has_no_figure(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "watch", "-o", str(results), TRAIN, "--epochs", "3", "--diverge"])
    assert done.returncode == 0, done.stderr
    record = only_record(results)
    assert (record.status, record.throughput) == ("invalid", None)
    assert "non-finite loss" in done.stderr
    assert "throughput   - samples/s" in done.stderr


@pytest.mark.parametrize("command", ["watch", "diagnose"])
@pytest.mark.parametrize(("flag", "exit_code"), [("--help", 0), ("--steps=50", 2)])
def test_script_that_only_reads_its_arguments_leaves_no_record(
    command: str, flag: str, exit_code: int, launch: Launch, results: Path
) -> None:
    done = launch([*PLAIN, command, "-o", str(results), TRAIN, flag])
    assert done.returncode == exit_code, done.stderr
    assert "usage: train.py" in done.stdout + done.stderr
    assert "made no training step: there is nothing to report" in done.stderr
    assert ("flags of ddpbench come before train.py" in done.stderr) == (exit_code == 2)
    assert not list(results.glob("*.json"))


def test_two_ranks_of_ddp(launch: Launch, results: Path) -> None:
    done = launch([*TORCHRUN, "watch", "-o", str(results), TRAIN, "--epochs", "4", "--late-rank", "1"])
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("weights")]) == 2
    record = only_record(results)
    assert (record.status, record.world_size, record.config.engine, record.environment.backend) == ("ok", 2, "ddp", "gloo")
    assert record.environment.launcher == "torchrun"
    assert record.script is not None
    assert record.script.model == "DistributedDataParallel(Sequential)"
    assert len(record.rounds) >= 3
    for timed in record.rounds:
        assert [trace.rank for trace in timed.traces] == [0, 1]
        assert timed.samples == 2 * 8 * timed.traces[0].steps
    assert phase_ms(record, "broadcast", rank=1) > 0
    assert phase_ms(record, "sync", rank=0) + phase_ms(record, "broadcast", rank=0) > 5, "rank 0 waits for the late rank"
    assert phase_ms(record, "sync", rank=1) < phase_ms(record, "sync", rank=0)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.rank) == ("straggler", 1)
    assert re.search(r"^  exposed sync ", done.stderr, re.MULTILINE)


def test_gpus_flag_starts_ranks_and_keeps_the_exit_code(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "watch", "--gpus", "2", "-q", "-o", str(results), TRAIN, "--exit", "3"])
    assert done.returncode == 3
    assert only_job(results).command == [
        *("ddpbench", "watch", "--gpus", "2", "--output-dir", str(results), "--quiet", TRAIN, "--exit", "3")
    ]
    record = only_record(results)
    assert (record.world_size, record.status, record.fault and record.fault.message) == (2, "failed", "exit code 3")
    assert len(done.stdout.splitlines()) == 4


def test_script_beside_a_module_named_like_one_of_python_is_reported_on(launch: Launch, results: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(Path(TRAIN).read_text())
    (tmp_path / "statistics.py").write_text("mean = None\n")
    watched = launch([*PLAIN, "watch", "-o", str(results), str(tmp_path / "train.py"), "--epochs", "3"])
    assert watched.returncode == 0, watched.stderr
    assert only_record(results).status == "ok"


def test_watching_imports_no_package_that_only_a_run_needs(launch: Launch, results: Path) -> None:
    script = str(SUPPORT / "scripts" / "modules.py")
    done = launch([*PLAIN, "watch", "-o", str(results), script])
    assert done.returncode == 0, done.stderr
    imported = ast.literal_eval(done.stdout.removeprefix("imported "))
    assert {"torch", "ddpbench"} <= set(imported)
    assert not {"torchvision", "accelerate", "matplotlib", "nvidia", "PIL", "scipy"} & set(imported)
    assert only_record(results).rounds, "the page has been printed, too"


OPTIONS = {
    "dict batches, accumulation, persistent workers, a forked child and stdin": [
        *("--data", "dict", "--accumulate", "4", "--workers", "1", "--persistent", "--epochs", "3", "--fork", "--stdin")
    ],
    "iterable dataset, logging, another folder and compiled": ["--data", "stream", "--log", "--chdir", "--compile"],
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_script_runs_unchanged_and_has_rounds(options: list[str], launch: Launch, results: Path) -> None:
    bare = launch([sys.executable, TRAIN, *options])
    done = launch([*PLAIN, "watch", "-o", str(results), TRAIN, *options])
    assert (done.stdout, done.returncode) == (bare.stdout, bare.returncode)
    record = only_record(results)
    assert record.status == "ok"
    assert record.rounds
    assert record.config.batch_size == 8
    assert record.script is not None
    assert record.script.batches_per_update == (4 if "--accumulate" in options else 1)
    if "--log" in options:
        assert phase_ms(record, "script") >= 5


FAULTS = {
    "never trains": (["--idle"], 0, "made no step with an optimizer of torch in this process"),
    "no DataLoader": (["--data", "list", "--batches", "12"], 0, "made 12 updates, not from batches of a DataLoader"),
    "too short": (["--batches", "8"], 0, "8 batches in 1 epoch are too few for a round"),
    "raises at once": (["--batches", "2", "--fail"], 1, "ValueError: no such luck"),
}


@pytest.mark.parametrize(("options", "code", "reason"), FAULTS.values(), ids=FAULTS)
def test_script_without_a_round_gets_one_line_and_a_record(
    options: list[str], code: int, reason: str, launch: Launch, results: Path
) -> None:
    done = launch([*PLAIN, "watch", "-o", str(results), TRAIN, *options])
    assert done.returncode == code
    _, line = (line for line in done.stderr.splitlines() if line.startswith("ddpbench"))
    assert reason in line
    assert ("Traceback" in done.stderr) == (code == 1)
    record = only_record(results)
    assert (record.status, record.rounds) == ("failed", [])
    assert record.fault is not None
    assert reason in record.fault.message


ENDINGS = {
    "KeyboardInterrupt": (["--interrupt"], -signal.SIGINT, "interrupted", "interrupted by SIGINT"),
}


@pytest.mark.parametrize(("options", "code", "status", "message"), ENDINGS.values(), ids=ENDINGS)
def test_script_that_fails_keeps_its_ending_and_has_a_page(
    options: list[str], code: int, status: str, message: str, launch: Launch, results: Path
) -> None:
    bare = launch([sys.executable, TRAIN, *options])
    done = launch([*PLAIN, "watch", "-o", str(results), TRAIN, *options])
    assert (done.returncode, done.stdout) == (code, bare.stdout)
    assert bare.returncode == code
    assert done.stderr.partition("\n")[2].startswith(bare.stderr)
    record = only_record(results)
    assert (record.status, record.fault and record.fault.message) == (status, message)
    assert record.rounds
    assert message in done.stderr.removeprefix(bare.stderr)


def test_launch_under_a_launcher_is_refused(launch: Launch, results: Path) -> None:
    done = launch([*TORCHRUN, "watch", "--gpus", "2", "-o", str(results), TRAIN])
    assert done.returncode != 0
    assert "--gpus cannot be used under a launcher: every rank would start further ranks" in errors(done.stderr)


def test_redacted_script_leaves_the_host_out_of_page_record_and_json(launch: Launch, results: Path, tmp_path: Path) -> None:
    target = tmp_path / "shared.json"
    script = [TRAIN, "--epochs", "2", "--sample-ms", "1"]
    done = launch([*PLAIN, "watch", "--redact", "--json", str(target), "-o", str(results), *script])
    assert done.returncode == 0
    job, shared = only_job(results), load(target)
    assert job.redacted
    assert shared == job
    for record in (*job.records, *shared.records):
        assert [each.host for each in record.environment.placements] == ["node-0"]
    assert ", node-0 " in done.stderr
    assert f", {socket.gethostname()} " not in done.stderr
