"""Scripts that ``watch --steps`` ends: what they have trained, and what they still do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import IMPATIENT, PLAIN, SUPPORT, TORCHRUN, only_job, only_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

TRAIN = str(SUPPORT / "scripts" / "train.py")
END = ["finally", "at exit"]
Launch = Callable[..., Any]


def losses(stdout: str) -> list[str]:
    return [line for line in stdout.splitlines() if line.startswith("loss ")]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_losses_are_bit_for_bit_those_of_the_bare_script(workers: str, start: Launch, results: Path) -> None:
    script = [TRAIN, "--losses", "--epochs", "2", "--workers", workers]
    commands = [
        [sys.executable, *script],
        [*PLAIN, "watch", "-o", str(results / "whole"), *script],
        [*PLAIN, "watch", "-o", str(results / "ended"), "--steps", "50", *script],
    ]
    bare, watched, ended = [each.wait(80) for each in [start(command) for command in commands]]
    assert len(set(losses(bare.stdout))) == 80
    assert watched.stdout == bare.stdout
    assert ended.stdout.splitlines() == [*losses(bare.stdout)[:50], *END]
    assert [done.returncode for done in (bare, watched, ended)] == [0, 0, 0]
    assert "Traceback" not in ended.stderr
    record = only_record(results / "ended")
    assert record.script is not None
    assert (record.status, record.script.batches, record.script.epochs, record.script.ended_early) == ("ok", 50, 2, True)
    assert "50 batches per rank in 2 epochs, ended by --steps" in ended.stderr


def test_all_ranks_end_at_the_same_step(launch: Launch, results: Path) -> None:
    done = launch([*TORCHRUN, "watch", "--steps", "25", "-o", str(results), TRAIN, "--losses", "--late-rank", "1", "--epochs", "9"])
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 2 * 25
    assert sorted(line for line in done.stdout.splitlines() if line in END) == sorted(2 * END)
    record = only_record(results)
    assert (record.status, record.world_size, record.script and record.script.batches) == ("ok", 2, 25)
    assert {trace.rank for timed in record.rounds for trace in timed.traces} == {0, 1}


def test_gpus_flag_hands_on_the_steps(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "watch", "--gpus", "2", "--steps", "5", "-o", str(results), TRAIN, "--losses"])
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 2 * 5
    command = only_job(results).command
    assert command[:4] == ["ddpbench", "watch", "--gpus", "2"]
    place = command.index("--steps")
    assert command[place : place + 2] == ["--steps", "5"]
    assert command[-2:] == [TRAIN, "--losses"]


def test_batches_that_accelerate_fetches_ahead_do_not_count(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "watch", "--steps", "5", "-o", str(results), TRAIN, "--losses", "--accelerate"])
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 5


def test_script_that_catches_the_end_once_ends_at_the_next_step(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "watch", "--steps", "5", "-o", str(results), TRAIN, "--losses", "--swallow", "once"])
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 6
    assert done.stdout.splitlines()[-2:] == END


def test_script_that_always_catches_the_end_is_left_in_the_end(launch: Launch, results: Path) -> None:
    script = [TRAIN, "--losses", "--swallow", "always", "--epochs", "1000", "--workers", "1"]
    done = launch([*IMPATIENT, "watch", "--steps", "30", "-o", str(results), *script])
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) > 2 * 30
    assert not set(END) & set(done.stdout.splitlines())
    assert done.stderr.count("train.py caught the SystemExit that should have ended it, and trained on: its process ends now") == 1
    record = only_record(results)
    assert (record.status, record.world_size, record.script and record.script.ended_early) == ("ok", 2, True)
    assert record.rounds
    assert done.stderr.count("ddpbench watch  train.py") == 1


READS_ON = """\
import atexit, threading, time, torch
from torch.utils.data import DataLoader, TensorDataset
def read_on(workers):
    threading.main_thread().join()
    raise ConnectionResetError(f"{workers} threads: the workers are gone")
threading.Thread(target=read_on, args=("daemon",), daemon=True).start()
if %r:
    threading.Thread(target=read_on, args=("other",)).start()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(time.sleep, 1)  # the daemon thread gets to its error before the interpreter ends
for (points,) in DataLoader(TensorDataset(torch.randn(40, 2))):
    model(points).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("steps", "has_other", "printed"), [("5", False, []), ("99", False, ["daemon"]), ("5", True, ["other"])])
def test_error_of_a_daemon_thread_after_an_early_end_is_not_printed(
    launch: Launch, tmp_path: Path, steps: str, has_other: bool, printed: list[str]
) -> None:
    """A script that ended by itself is as without ddpbench, and its other threads are waited for."""
    (tmp_path / "reads_on.py").write_text(READS_ON % has_other)
    done = launch([*PLAIN, "watch", "-o", "runs", "--steps", steps, "reads_on.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stderr.splitlines() if line.startswith("ConnectionResetError:")] == printed
