"""Watched scripts with something wrong in them: each gets one clear line and a record, and none hangs."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from launches import IMPATIENT, PLAIN, SUPPORT, TORCHRUN, errors, only_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

SCRIPTS = SUPPORT / "scripts"
STUCK = str(SCRIPTS / "stuck.py")
SOON_SAVED = ["--every", "2s"]
"""The first save of the record is after the first exchange: half a second then."""
Launch = Callable[..., Any]


def notes(stderr: str) -> list[str]:
    """The notes of ddpbench, without their prefix."""
    return re.findall(r"^ddpbench: note: (.*)$", stderr, re.MULTILINE)


@pytest.fixture
def ranks(start: Launch, free_port: int) -> Callable[..., list[Any]]:
    """Run a command in two ranks without a launcher that ends one if the other fails; returns how they ended."""

    def go(*commands: Sequence[str], timeout: float = 80.0) -> list[Any]:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port), "WORLD_SIZE": "2"}
        running = [
            start(command, env={**address, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"})
            for rank, command in enumerate(commands)
        ]
        done = [each.wait(timeout) for each in running]
        assert [each.left_behind() for each in running] == [[], []]
        return done

    return go


# ranks that stand still


@pytest.mark.parametrize(
    ("what", "line", "collectives"),
    [
        ("collective", r"stuck\.py:\d+ in happen: dist\.barrier\(\)", "; rank 1 waits in gloo:barrier "),
        ("stop", "a stopped process, or a call that holds Python's lock", "; rank 0 waits in gloo:all_reduce "),
    ],
)
def test_hang_timeout_ends_all_ranks_and_names_the_one_that_hangs(
    what: str, line: str, collectives: str, launch: Launch, results: Path
) -> None:
    done = launch([*PLAIN, "watch", "--gpus", "2", "--hang-timeout", "4", "-o", str(results), STUCK, "--what", what, "--at", "200"])
    assert done.returncode == 124, done.stderr
    (error,) = errors(done.stderr)
    assert re.fullmatch(r"rank 1 \(.*\) hung at step \d+: no progress for \d+ s", error)
    (hint,) = re.findall(r"^hint: (.*)$", done.stderr, re.MULTILINE)
    assert re.match(rf"rank 1 was in {line}", hint)
    assert collectives in hint
    record = only_record(results)
    assert (record.status, record.world_size) == ("hung", 2)
    assert record.fault is not None
    assert (record.fault.message, record.fault.hint, record.fault.rank) == (error, hint, 1)
    assert record.rounds
    assert done.stderr.count("ddpbench watch  stuck.py") == 1


def test_stopped_rank_0_is_ended_by_another_rank(launch: Launch, results: Path) -> None:
    script = [STUCK, "--what", "stop", "--rank", "0", "--at", "300"]
    done = launch([*PLAIN, "watch", "--gpus", "2", "--hang-timeout", "4", "-o", str(results), *script])
    assert done.returncode == 124, done.stderr
    (error,) = errors(done.stderr)
    assert re.match(r"rank 0 \(.*\) hung at step", error)
    record = only_record(results)
    assert (record.status, record.fault and record.fault.rank) == ("hung", 0)


def test_hang_of_a_single_rank_ends_it(launch: Launch, results: Path) -> None:
    script = [STUCK, "--what", "sleep", "--at", "2", "--rank", "0"]
    done = launch([*PLAIN, "watch", "--hang-timeout", "4", "-o", str(results), *script])
    assert done.returncode == 124
    assert re.match(r"rank 0 \(.*\) hung at step 2: no progress for \d+ s$", errors(done.stderr)[0])
    assert only_record(results).status == "hung"


def test_hang_before_the_first_step_is_noticed(launch: Launch, results: Path) -> None:
    script = [STUCK, "--what", "sleep", "--at", "0"]
    done = launch([*PLAIN, "watch", "--gpus", "2", "--hang-timeout", "4", "-o", str(results), *script])
    assert done.returncode == 124, done.stderr
    (seconds,) = re.findall(r"rank 1 \(.*\) hung at step 0: no progress for (\d+) s", errors(done.stderr)[0])
    assert int(seconds) > 4, "the first step may take longer"


def test_rank_that_evaluates_longer_than_the_hang_timeout_is_left_alone(launch: Launch, results: Path) -> None:
    script = [STUCK, "--what", "evaluate", "--rank", "0", "--batches", "100"]
    done = launch([*TORCHRUN, "watch", "--hang-timeout", "3", "-o", str(results), *script])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n" * 2
    assert only_record(results).status == "ok"


def test_rank_without_progress_is_reported_once_and_not_ended(launch: Launch, results: Path) -> None:
    script = [STUCK, "--what", "slow", "--at", "50", "--batches", "100"]
    done = launch([*IMPATIENT, "watch", "-o", str(results), *script])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n" * 2
    (note,) = notes(done.stderr)
    assert re.match(r"rank 1 \(.*\) has made no progress for \d+ s at step 50: stuck\.py:\d+ in happen: time\.sleep\(6\); rank 0", note)
    assert only_record(results).status == "ok"


def test_rank_that_hangs_after_rank_0_has_ended_ends_itself(launch: Launch, results: Path) -> None:
    script = [STUCK, "--single", "--batches", "400", "--short-rank", "0", "--what", "sleep", "--at", "300"]
    done = launch([*PLAIN, "watch", "--gpus", "2", "--hang-timeout", "4", "-o", str(results), *script])
    assert done.returncode == 124, done.stderr
    assert re.match(r"rank 1 \(.*\) hung at step 300: no progress for", errors(done.stderr)[0])


# ranks that fail or die


def test_rank_that_raises_alone_is_named_in_the_record(launch: Launch, results: Path) -> None:
    done = launch([*TORCHRUN, "watch", "-o", str(results), STUCK, "--what", "raise", "--at", "100"])
    assert done.returncode == 1
    assert done.stderr.count("[rank1]: ValueError: no such luck") == 1
    (error,) = errors(done.stderr)
    assert re.fullmatch(r"rank 1 \(.*\) ended with ValueError: no such luck", error)
    record = only_record(results)
    assert (record.status, record.fault and record.fault.message, record.fault and record.fault.rank) == ("failed", error, 1)
    assert record.rounds


def test_rank_that_dies_is_named(ranks: Callable[..., list[Any]], results: Path) -> None:
    command = [*PLAIN, "watch", *SOON_SAVED, "-o", str(results), STUCK, "--what", "kill", "--at", "200"]
    rank0, rank1 = ranks(command, command)
    assert (rank0.returncode, rank1.returncode) == (1, -signal.SIGKILL)
    (error,) = errors(rank0.stderr)
    assert re.fullmatch(r"rank 1 \(.*\) ended unexpectedly after step [\d,]+: it was killed, or called os\._exit", error)
    record = only_record(results)
    assert (record.status, record.fault and record.fault.message) == ("failed", error)
    assert record.rounds


def test_death_of_rank_0_is_reported_once_under_torchrun(launch: Launch, results: Path) -> None:
    """torchrun looks every 0.1 s by default, and may end the other rank before that can report."""
    patient = [*TORCHRUN[:-2], "--monitor-interval=2", *TORCHRUN[-2:]]
    done = launch([*patient, "watch", *SOON_SAVED, "-o", str(results), STUCK, "--what", "kill", "--rank", "0", "--at", "200"])
    assert done.returncode == 1
    (error,) = errors(done.stderr)
    assert error.startswith("rank 0 (")
    assert "ended unexpectedly" in error
    assert only_record(results).status == "failed"


def test_script_that_leaves_by_os_exit_keeps_the_last_saved_record(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "watch", "-q", "-o", str(results), STUCK, "--what", "leave", "--rank", "0", "--at", "900"])
    assert (done.returncode, done.stderr) == (7, "")
    record = only_record(results)
    assert record.status == "running"
    assert record.rounds
    shown = launch([*PLAIN, "report", str(results)])
    assert shown.returncode == 0
    assert "interrupted: its process is gone" in shown.stdout


# ranks that differ


def test_ranks_with_different_numbers_of_batches_are_named(launch: Launch, results: Path) -> None:
    done = launch([*TORCHRUN, "watch", "-o", str(results), STUCK, "--single", "--batches", "200", "--short-rank", "1"])
    assert done.returncode == 0, done.stderr
    assert "ranks made different numbers of steps: rank 0 200, rank 1 100" in notes(done.stderr)
    assert only_record(results).status == "ok"


def test_rank_with_fewer_batches_of_ddp_is_named(ranks: Callable[..., list[Any]], results: Path) -> None:
    command = [*PLAIN, "watch", "-o", str(results), STUCK, "--batches", "100", "--short-rank", "1"]
    rank0, rank1 = ranks(command, command)
    assert rank1.returncode == 0, rank1.stderr
    assert rank0.returncode == 1
    assert rank0.stderr.count("RuntimeError") >= 1
    assert "ranks made different numbers of steps: rank 0 50, rank 1 50" not in rank0.stderr
    record = only_record(results)
    assert record.status == "failed"
    assert record.script is not None
    assert record.script.batches == 50


def test_ranks_with_different_scripts_are_named(ranks: Callable[..., list[Any]], results: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    shutil.copy(STUCK, other)
    command, rest = [*PLAIN, "watch", "-o", str(results)], ["--batches", "100"]
    rank0, rank1 = ranks([*command, STUCK, *rest], [*command, str(other), *rest])
    assert (rank0.returncode, rank1.returncode) == (0, 0), rank0.stderr
    assert "ranks run different scripts: rank 0 stuck.py, rank 1 other.py" in " ".join(rank0.stderr.split())
    assert only_record(results).status == "failed"


# other bad input


def test_processes_that_the_script_starts_are_said_to_be_unseen(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "watch", "-o", str(results), str(SCRIPTS / "spawned.py")])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 has trained", "rank 1 has trained"]
    (note,) = notes(done.stderr)
    assert note.startswith(
        "spawned.py made no step with an optimizer of torch in this process (processes that a script starts are not watched"
    )
    assert only_record(results).status == "failed"


def test_script_that_only_infers_does_not_wait_for_other_ranks(launch: Launch, results: Path) -> None:
    done = launch([*TORCHRUN, "watch", "-o", str(results), STUCK, "--inference", "--batches", "100"])
    assert done.returncode == 0, done.stderr
    (note,) = notes(done.stderr)
    assert note.startswith("stuck.py made no step")


@pytest.mark.parametrize(
    ("text", "error", "is_torch_loaded"),
    [
        ("1 +\n", "SyntaxError: invalid syntax", False),
        ("raise ValueError('too early')\n", "ValueError: too early", False),
        ("import torch\nraise ValueError('too early')\n", "ValueError: too early", True),
    ],
    ids=["syntax", "before torch", "before the training"],
)
def test_script_that_fails_before_the_training_gets_one_line(
    text: str, error: str, is_torch_loaded: bool, launch: Launch, results: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    bare = launch([sys.executable, str(script)])
    done = launch([*PLAIN, "watch", "-o", str(results), str(script)])
    assert done.returncode == bare.returncode == 1
    assert done.stderr.partition("\n")[2].startswith(bare.stderr)
    assert error in bare.stderr
    (line,) = done.stderr.partition("\n")[2].removeprefix(bare.stderr).splitlines()
    if is_torch_loaded:
        assert line.startswith(f"ddpbench: note: {error}; record: ")
        assert only_record(results).status == "failed"
    else:
        assert line == "ddpbench: note: script.py did not import torch: there is nothing to report"
        assert not results.exists()


def test_script_that_raises_while_it_trains_keeps_its_ending(launch: Launch, results: Path) -> None:
    script = [STUCK, "--what", "raise", "--rank", "0", "--at", "150"]
    bare = launch([sys.executable, *script])
    done = launch([*PLAIN, "watch", "-o", str(results), *script])
    assert done.returncode == bare.returncode == 1
    assert done.stderr.partition("\n")[2].startswith(bare.stderr)
    record = only_record(results)
    assert (record.status, record.fault and record.fault.message) == ("failed", "ValueError: no such luck")
    assert record.rounds


# lines while it runs


def test_state_is_printed_at_the_requested_interval(launch: Launch, results: Path) -> None:
    done = launch([*TORCHRUN, "watch", "--every", "1s", "-o", str(results), STUCK, "--batches", "400"])
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("ddpbench:  step ")]
    assert len(lines) >= 3
    for line in lines:
        assert re.fullmatch(r"ddpbench:  step [\d,]+  [\d,.]+ samples/s  data wait [\d.]+%(  slowest rank [01] \(\+[\d.]+%\))?", line)
        assert len(line) <= 80
    assert any("slowest rank" in line for line in lines)  # once both ranks have published their state
    steps = [int(line.split()[2].replace(",", "")) for line in lines]
    assert steps == sorted(steps)
