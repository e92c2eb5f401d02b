"""Real runs with ``--redact``: no file that they leave, and no page, has a host, a user, a path or a command."""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sample_datasets
from launches import PLAIN, SHORT_DIAGNOSIS, SMALL, SUPPORT_ENV, errors, only_record

from ddpbench.record.io import load

pytestmark = [pytest.mark.timeout(110), pytest.mark.slow]

RANKS = ["--gpus", "2", "--device", "cpu", "--redact"]


def private_names(*paths: Path) -> list[str]:
    """The host and the user of this machine, and the folders of a run."""
    return [socket.gethostname(), getpass.getuser(), str(Path.home()), str(Path.cwd()), "misbehaving", *map(str, paths)]


def assert_redacted(results: Path, page: str, *paths: Path) -> None:
    """Assert that no file in ``results``, no file name there and no line of ``page`` has a private name."""
    files = [path for path in results.rglob("*") if path.is_file() and path.suffix == ".json"]
    assert files
    texts = {"page": page, **{path.name: f"{path.name} {path.read_text()}" for path in files}}
    for name in private_names(results, *paths):
        found = [label for label, text in texts.items() if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
        assert not found, f"{name} is in {found}"
    for path in files:
        if ".trace" not in path.suffixes:
            job = load(path)
            assert job.redacted
            assert job.command == []


def test_run_on_files_with_skipped_ones_and_traces(launch: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    data = sample_datasets.image_tree(tmp_path / "acme images", images=8)
    sample_datasets.truncate(next(data.rglob("3.JPEG")))
    words = ["resnet18", *SMALL, "-b", "2", "--image-size", "32", "--rounds", "2", "-j", "1", "--skip-bad", "4", "--profile"]
    done = launch([*PLAIN, *words, *RANKS, "--data-dir", str(data), "-o", str(results), "--json", str(tmp_path / "copy.json")])
    assert done.returncode == 0, done.stderr
    assert_redacted(results, done.stdout, data, Path("3.JPEG"))
    assert re.search(rf"^ddpbench: note: the redacted record is in {re.escape(str(results))}/\S+\.json$", done.stderr, re.MULTILINE)
    assert not re.search("^torchrun ", done.stderr, re.MULTILINE)
    (record,) = (path for path in results.glob("*.json") if ".trace" not in path.suffixes)
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads(record.read_text())
    skipped = [file for trace in load(record).records[0].traces if trace.loader_stats for file in trace.loader_stats.skipped_files]
    assert set(skipped) == {"FILE"}
    traces = [json.loads(path.read_text()) for path in results.glob("*.trace.json")]
    assert [(trace["host_name"], trace["traceName"]) for trace in traces] == [("", "")] * 2


def test_launches_and_their_merged_record(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, "misbehaving:fine", *SMALL, "--rounds", "1", "--launches", "2", *RANKS, "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    assert len(list(results.glob("*.json"))) == 3
    assert_redacted(results, done.stdout)


def test_diagnosis(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, *SHORT_DIAGNOSIS, "--time-limit", "30", *RANKS, "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    assert "MODULE:NAME" in done.stdout
    assert_redacted(results, done.stdout)


def test_failed_run(launch: Callable[..., Any], results: Path) -> None:
    fault = {"FAULT_RANK": "1", "FAULT_STEP": "9"}
    words = ["misbehaving:hangs", *SMALL, "--hang-timeout", "3", *RANKS, "-o", str(results)]
    done = launch([*PLAIN, *words], env={**SUPPORT_ENV, **fault})
    assert done.returncode != 0
    assert len(errors(done.stderr)) == 1
    record = only_record(results)
    assert record.fault is not None
    assert record.fault.message == "rank 1 (node-0) hung at step 9 (forward): no progress for 3 s"
    report = launch([*PLAIN, "report", *map(str, results.glob("*.json")), "--redact"])
    assert_redacted(results, report.stdout)


def test_sweep_is_resumed(launch: Callable[..., Any], results: Path) -> None:
    words = [
        *PLAIN,
        "sweep",
        "disc-mlp-3",
        "--lr",
        "0.05,0.1",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--warmup",
        "1",
        "--redact",
        "-o",
        str(results),
    ]
    first, second = (launch([*words, "--rounds", rounds]) for rounds in ("1", "2"))
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    (path,) = results.rglob("*.json")
    job = load(path)
    assert [len(record.rounds) for record in job.records] == [2, 2]
    assert not any(record.relocations for record in job.records)
    assert_redacted(results, first.stdout + second.stdout)
