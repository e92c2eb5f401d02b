"""Fresh launches of a script as it is and with a change, in turn: what they prove, and what they leave alone."""

from __future__ import annotations

import difflib
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, TORCHRUN, errors, only_job

from ddpbench.record.proof import Proof
from ddpbench.report.summarize_job import summarize_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

Launch = Callable[..., Any]

TRAIN = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from settings import PAUSE_S, RATE
torch.manual_seed(0)
assert sys.argv[1:] == ["--epochs", "9"], sys.argv
if os.environ.get("WORLD_SIZE", "1") != "1":
    torch.distributed.init_process_group("gloo")
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), RATE)
loader = DataLoader(TensorDataset(torch.randn(640, 8), torch.randint(0, 4, (640,))), batch_size=16)
for epoch in range(1000):
    for x, y in loader:
        time.sleep(PAUSE_S)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""
SETTINGS = "PAUSE_S = 0.02\nRATE = 0.1\n"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (folder := tmp_path / "sources").mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "settings.py").write_text(SETTINGS)
    return folder


def write_diff(sources: Path, *changes: tuple[str, str]) -> None:
    """Of ``settings.py``, with each first text replaced by the second."""
    changed = SETTINGS
    for before, after in changes:
        changed = changed.replace(before, after)
    lines = difflib.unified_diff(SETTINGS.splitlines(True), changed.splitlines(True), "a/settings.py", "b/settings.py")
    (sources / "faster.diff").write_text("".join(lines))


def command(results: Path, *flags: str) -> list[str]:
    return [*PLAIN, "ab", "--diff", "faster.diff", "--steps", "60", "-o", str(results), *flags, "train.py", "--epochs", "9"]


def proof_in(results: Path) -> Proof:
    proof = only_job(results).proof
    assert proof is not None
    return proof


@pytest.mark.parametrize("flags", [[], ["--gpus", "2", "--compute-only"]], ids=["alone", "two ranks, computing alone"])
def test_change_is_proved_and_nothing_of_the_user_is_changed(launch: Launch, results: Path, sources: Path, flags: list[str]) -> None:
    write_diff(sources, ("0.02", "0.002"))
    done = launch(command(results, *flags), cwd=sources, timeout=180)
    assert done.returncode == 0, done.stderr
    proof = proof_in(results)
    assert [each.is_changed for each in proof.launches] == [False, True, True, False]
    assert (proof.code, proof.problems, proof.compute_only) == ("proved", [], bool(flags))
    assert proof.gain is not None
    assert proof.gain.low > 1
    assert {each.updates for each in proof.launches} == {60}
    assert "PROVED   with the change the script" in done.stderr
    summary = summarize_job(only_job(results))
    assert summary.proof is not None
    assert (summary.proof.code, summary.job) == ("proved", "ab")
    assert sorted(path.name for path in sources.iterdir() if path.name != "__pycache__") == ["faster.diff", "settings.py", "train.py"]
    assert (sources / "settings.py").read_text() == SETTINGS


SPAWNED = """
import time
import torch
from torch.utils.data import DataLoader
from settings import PAUSE_S, RATE

def slow(samples):
    time.sleep(PAUSE_S)
    return torch.stack(samples)

def main():
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    loader = DataLoader(
        torch.randn(8000, 8), batch_size=16, collate_fn=slow, num_workers=1, multiprocessing_context="spawn", prefetch_factor=1
    )
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""


def test_workers_that_are_spawned_compile_the_change_too(launch: Launch, results: Path, sources: Path) -> None:
    (sources / "train.py").write_text(SPAWNED)
    write_diff(sources, ("0.02", "0.0002"))
    done = launch(command(results), cwd=sources, timeout=180)
    assert done.returncode == 0, done.stderr
    assert proof_in(results).code == "proved", done.stderr


def test_diff_of_a_module_that_is_not_imported_proves_nothing(launch: Launch, results: Path, sources: Path) -> None:
    (sources / "train.py").write_text(TRAIN.replace("from settings import PAUSE_S, RATE", "PAUSE_S, RATE = 0.0, 0.1"))
    write_diff(sources, ("0.02", "0.002"))
    done = launch(command(results), cwd=sources, timeout=180)
    assert done.returncode == 1
    assert errors(done.stderr) == ["the launch with faster.diff has no figure: train.py imports no source that the diff changes"]


def test_launch_that_is_killed_has_no_figure(launch: Launch, results: Path, sources: Path) -> None:
    (sources / "train.py").write_text(TRAIN.replace("        optimizer.step()", "        optimizer.step()\n        RATE > 1 and KILL(x)"))
    (sources / "settings.py").write_text(SETTINGS)
    kill = "import os, signal\nsteps = []\ndef KILL(x):\n    steps.append(x)\n    len(steps) < 50 or os.kill(os.getpid(), signal.SIGKILL)\n"
    (sources / "train.py").write_text(kill + (sources / "train.py").read_text())
    write_diff(sources, ("RATE = 0.1", "RATE = 2"))
    done = launch(command(results), cwd=sources, timeout=180)
    assert done.returncode == 1
    assert errors(done.stderr)[-1].startswith("the launch with faster.diff has no figure: ")


def test_change_that_breaks_the_training_is_refuted(launch: Launch, results: Path, sources: Path) -> None:
    write_diff(sources, ("0.02", "0.002"), ("0.1", "1e38"))
    done = launch(command(results), cwd=sources, timeout=180)
    assert done.returncode == 3, done.stderr
    proof = proof_in(results)
    assert (proof.code, proof.problems) == ("refuted", ["loss-not-finite"])
    assert "REFUTED" in done.stderr
    assert "but its loss is not finite" in " ".join(done.stderr.split())


def test_launch_that_fails_is_one_line_after_what_it_printed(launch: Launch, results: Path, sources: Path) -> None:
    write_diff(sources, ("RATE = 0.1", "RATE = 1 / 0"))
    done = launch(command(results), cwd=sources, timeout=180)
    assert done.returncode == 1
    assert errors(done.stderr) == ["the launch with faster.diff has no figure: ZeroDivisionError: division by zero"]
    assert "ZeroDivisionError: division by zero" in done.stderr
    (record,) = results.glob("*.json")
    assert len(proof_in(results).launches) == 1, "what was measured is kept"
    assert "NOT DECIDED" in launch([*PLAIN, "report", str(record)]).stdout


def test_interrupt_ends_the_launch_and_keeps_what_was_measured(results: Path, sources: Path) -> None:
    write_diff(sources, ("0.02", "0.002"))
    with subprocess.Popen(command(results), cwd=sources, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "launch 2 of 4" in line:
                time.sleep(1)
                process.send_signal(signal.SIGINT)
                break
        assert process.wait(30) == 130
    assert len(proof_in(results).launches) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ab", "train.py"], "ab needs the change to try: --diff FILE"),
        (["ab", "--diff", "missing.diff", "train.py"], "cannot read the diff 'missing.diff': No such file or directory"),
        (["ab", "--diff", "faster.diff", "other.py"], "cannot run 'other.py': no such file"),
        (["ab", "--diff", "faster.diff", "--pairs", "1", "train.py"], "--pairs cannot be '1'"),
    ],
)
def test_bad_request_is_one_line(launch: Launch, sources: Path, words: list[str], message: str) -> None:
    write_diff(sources, ("0.02", "0.002"))
    done = launch([*PLAIN, *words], cwd=sources)
    assert done.returncode == 2
    assert [line.partition(":")[0] for line in errors(done.stderr)] == [message.partition(":")[0]]


def test_launcher_is_refused(launch: Launch, sources: Path) -> None:
    write_diff(sources, ("0.02", "0.002"))
    done = launch([*TORCHRUN, "ab", "--diff", "faster.diff", "train.py"], cwd=sources, timeout=60)
    assert done.returncode != 0
    assert "ab starts the ranks itself, and cannot be used under a launcher" in done.stderr
