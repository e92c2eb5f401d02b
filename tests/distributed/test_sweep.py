"""Real sweeps: finished points, points out of memory, and resuming."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import sample_datasets
from launches import SUPPORT_ENV, TORCHRUN

from ddpbench.record.io import load, save
from ddpbench.record.record import Job

PLAIN = [sys.executable, "-m", "ddpbench"]
DISC = ["sweep", "disc-mlp-3", "--lr", "0.05,0.1", "--epochs", "2", "--rounds", "3", "--device", "cpu", "--warmup", "1"]
FILE = "cpu/sweep-disc-mlp-3-lr.json"

pytestmark = pytest.mark.timeout(110)


def figures(job: Job) -> list[list[tuple[float | None, float | None, int]]]:
    """(last loss, accuracy, parameter checksum) of every round of every sweep point."""
    numerics = [[timed.traces[0].numerics for timed in record.rounds] for record in job.records]
    return [[(each.last_loss, each.accuracy, each.params_checksum_after) for each in cell] for cell in numerics]


@pytest.mark.slow
def test_each_round_trains_from_scratch_and_reports_accuracy(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, *DISC, "-o", str(results)])
    assert done.returncode == 0, done.stderr
    job = load(results / FILE)
    assert [record.config.lr for record in job.records] == [0.05, 0.1]
    for record in job.records:
        assert record.status == "ok"
        assert [timed.traces[0].steps for timed in record.rounds] == [20, 20, 20], "two epochs of 1000 points, 100 per step"
        accuracies = [timed.traces[0].numerics.accuracy for timed in record.rounds]
        assert all(accuracy is not None and 0 <= accuracy <= 1 for accuracy in accuracies)
        assert len({timed.traces[0].numerics.params_checksum_before for timed in record.rounds}) == 3, "initial weights differ by round"
    first, second = ([timed.traces[0].numerics.params_checksum_before for timed in record.rounds] for record in job.records)
    assert first == second, "initial weights of a round are the same at every sweep point"
    assert "accuracy on the training points (%)" in done.stdout, "the disc workload has no held-out points"
    again = launch([*PLAIN, "report", str(results / FILE)])
    assert again.stdout == done.stdout


@pytest.mark.slow
def test_more_rounds_are_appended_to_existing_rounds(launch: Callable[..., Any], results: Path) -> None:
    def swept(rounds: int) -> Any:
        return launch([*PLAIN, *DISC, "--rounds", str(rounds), "-o", str(results)])

    assert swept(2).returncode == 0
    had = figures(load(results / FILE))
    done = swept(3)
    assert done.returncode == 0, done.stderr
    job = load(results / FILE)
    assert [len(record.rounds) for record in job.records] == [3, 3]
    assert [cell[:2] for cell in figures(job)] == had, "finished rounds are kept"
    assert job.command[-4:-2] == ["--rounds", "3"]
    fewer = swept(2)
    assert fewer.returncode == 2
    assert "the journal of another command" in fewer.stderr


@pytest.mark.slow
def test_default_steps_are_shared_and_kept_on_resume(launch: Callable[..., Any], results: Path) -> None:
    words = ["sweep", "mnist-cnn", "-b", "4,32", "--rounds", "2", "--warmup", "1", "--device", "cpu", "--no-validate", "-o", str(results)]
    done = launch([*PLAIN, *words])
    assert done.returncode == 0, done.stderr
    assert "2 rounds of 10 steps each" in " ".join(done.stdout.split()), "wherever the line wraps"
    path = results / "cpu/sweep-mnist-cnn-batch-size.json"
    job = load(path)
    for record in job.records:
        del record.rounds[1:]
        record.status, record.throughput = "interrupted", None
    save(job, path)
    assert launch([*PLAIN, *words]).returncode == 0
    assert [[timed.traces[0].steps for timed in record.rounds] for record in load(path).records] == [[10, 10], [10, 10]]


@pytest.mark.slow
def test_killed_sweep_resumes_without_repeating_rounds(start: Callable[..., Any], launch: Callable[..., Any], tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    longer = [*DISC[: DISC.index("--epochs") + 1], "20", *DISC[DISC.index("--rounds") :]]
    assert launch([*PLAIN, *longer, "-o", str(whole)]).returncode == 0
    running = start([*PLAIN, *longer, "-o", str(broken)])
    running.until(lambda: (broken / FILE).exists() and sum(len(record.rounds) for record in load(broken / FILE).records) >= 2)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(20)
    kept = load(broken / FILE)
    for record in kept.records:
        place = msgspec.structs.replace(record.environment.placements[0], host="another")
        record.environment = msgspec.structs.replace(record.environment, placements=[place])
    save(kept, broken / FILE)
    assert 2 <= sum(len(record.rounds) for record in kept.records) < 6
    done = launch([*PLAIN, *longer, "--time-limit", "500", "-o", str(broken)])
    assert done.returncode == 0, done.stderr
    job = load(broken / FILE)
    for before, after in zip(kept.records, job.records, strict=True):
        measured = len(before.rounds)
        assert [move.first_round for move in after.relocations] == ([measured] if 0 < measured < 3 else []), (
            "another host has gone on with it"
        )
        assert ("relocated" in [check.code for check in after.checks]) == bool(after.relocations)
    for before, after in zip(kept.records, job.records, strict=True):
        walls = {timed.index: timed.wall_s for timed in after.rounds}
        assert all(walls[timed.index] == timed.wall_s for timed in before.rounds), "finished rounds are unchanged"
        assert sorted(walls) == [0, 1, 2]
    assert figures(job) == figures(load(whole / FILE)), "bit-identical to an uninterrupted sweep"
    walls = [[timed.wall_s for timed in record.rounds] for record in job.records]
    assert launch([*PLAIN, *longer, "-o", str(broken)]).returncode == 0
    assert [[timed.wall_s for timed in record.rounds] for record in load(broken / FILE).records] == walls, "nothing was pending"


@pytest.mark.slow
def test_time_limit_ends_a_sweep_between_rounds_and_rerun_resumes(launch: Callable[..., Any], results: Path) -> None:
    """The first round of each invocation is always measured; here it is the only one."""
    for measured in ([1, 0], [1, 1]):
        done = launch([*PLAIN, *DISC, "--time-limit", "0.001", "-o", str(results)])
        assert done.returncode == 0, done.stderr
        assert [len(record.rounds) for record in load(results / FILE).records] == measured


@pytest.mark.slow
def test_signal_during_a_long_round_discards_that_round(start: Callable[..., Any], results: Path) -> None:
    longest = [*DISC[: DISC.index("--epochs") + 1], "100000", *DISC[DISC.index("--rounds") :]]
    running = start([*PLAIN, *longest, "-o", str(results)])
    running.until(lambda: "lr 0.05: epoch " in running.errors())
    os.kill(running.pid, signal.SIGTERM)
    done = running.wait(20)
    assert done.returncode == 143
    assert re.search(r"^ddpbench: lr 0.05: epoch \d+ of 100000$", done.stderr, re.MULTILINE)
    assert {(record.status, len(record.rounds)) for record in load(results / FILE).records} == {("interrupted", 0)}
    assert sorted(path.name for path in (results / "cpu").iterdir()) == [".sweep-disc-mlp-3-lr.lock", "sweep-disc-mlp-3-lr.json"]


@pytest.mark.slow
def test_out_of_memory_point_is_reported_and_not_retried(launch: Callable[..., Any], results: Path) -> None:
    words = ["sweep", "out_of_memory:immediate", "-b", "2,8", "--steps", "2", "--rounds", "2", "--warmup", "1", "--device", "cpu"]
    for _ in range(2):
        done = launch([*TORCHRUN, *words, "-o", str(results)], env=SUPPORT_ENV)
        assert done.returncode == 0, done.stderr
        (path,) = (results / "cpu").glob("*.json")
        fits, large = load(path).records
        assert (fits.status, len(fits.rounds)) == ("ok", 2)
        assert (large.status, len(large.rounds)) == ("failed", 0)
        assert large.fault is not None
        assert "out of memory at batch 8" in large.fault.message
        assert "out of memory" in done.stdout
    assert "starting: model" not in done.stderr, "nothing was pending"


SHORT = ["--rounds", "2", "--warmup", "1", "--device", "cpu"]
OOM_LATER = ["sweep", "out_of_memory:later", "-b", "8,2", "--steps", "6", *SHORT, "--loader", "torch", "-j", "0"]


@pytest.mark.parametrize(("program", "where"), [(PLAIN, "step"), (TORCHRUN, "validation")])
@pytest.mark.slow
def test_out_of_memory_after_the_dry_run_fails_only_that_point(
    launch: Callable[..., Any], results: Path, program: list[str], where: str
) -> None:
    for _ in range(2):
        done = launch([*program, *OOM_LATER, "-o", str(results)], env={**SUPPORT_ENV, "OOM_DURING": where})
        assert done.returncode == 0, done.stderr
        (path,) = (results / "cpu").glob("*.json")
        large, fits = load(path).records
        assert (fits.status, len(fits.rounds)) == ("ok", 2)
        assert (large.status, len(large.rounds)) == ("failed", 0)
        assert large.fault is not None
        assert f"out of memory at batch 8 in {'round 1' if where == 'step' else where}: peak" in large.fault.message
    assert "starting: model" not in done.stderr, "nothing was pending"


@pytest.mark.slow
def test_out_of_memory_on_one_rank_ends_the_run_and_rerun_skips_that_point(launch: Callable[..., Any], results: Path) -> None:
    words = [*TORCHRUN, *OOM_LATER, "-o", str(results)]
    first = launch(words, env=SUPPORT_ENV)
    assert first.returncode != 0
    assert "hint: use a smaller batch: -b N; the same command resumes with the other configurations" in first.stderr
    (path,) = (results / "cpu").glob("*.json")
    large, waiting = load(path).records
    assert large.fault is not None
    assert waiting.fault is not None
    assert large.fault.message.startswith("out of memory at batch 8 on rank 1")
    assert waiting.fault.message.startswith("stopped because another arm failed: out of memory at batch 8")
    again = launch(words, env=SUPPORT_ENV)
    assert again.returncode == 0, again.stderr
    large, fits = load(path).records
    assert (large.status, len(large.rounds)) == ("failed", 0)
    assert (fits.status, fits.fault, len(fits.rounds)) == ("ok", None, 2)
    assert "OOM" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("batches", "named"), [("9,8", "none of 2 configurations fits in memory, not even batch-size 8: "), ("8", "")])
def test_sweep_where_no_point_fits_reports_the_smallest(launch: Callable[..., Any], results: Path, batches: str, named: str) -> None:
    words = ["sweep", "out_of_memory:immediate", "-b", batches, "--steps", "2", *SHORT, "-o", str(results)]
    for _ in range(2 if named else 1):
        done = launch([*PLAIN, *words], env=SUPPORT_ENV)
        assert done.returncode == 2, done.stderr
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("ddpbench: error:")]
        assert error.startswith(f"ddpbench: error: {named}out of memory at batch 8")
    assert "hint: use a smaller batch: -b N" in done.stderr


@pytest.mark.slow
def test_journal_of_another_command_is_not_overwritten(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, *DISC, "--rounds", "1", "-o", str(results)]
    assert launch(words).returncode == 0

    def error_of(words: list[str]) -> str:
        before = (results / FILE).read_bytes()
        done = launch(words)
        assert done.returncode == 2
        assert (results / FILE).read_bytes() == before
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("ddpbench: error:")]
        assert FILE in error
        return str(error)

    assert "another command" in error_of([*words, "--momentum", "0.5"])
    job = load(results / FILE)
    for record in job.records:
        software = msgspec.structs.replace(record.environment.software, torch="1.0")
        record.environment = msgspec.structs.replace(record.environment, software=software)
    save(job, results / FILE)
    assert "torch 1.0" in error_of(words)


@pytest.mark.slow
def test_rounds_with_other_data_or_threads_are_not_merged(launch: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    digits = sample_datasets.mnist(tmp_path / "digits", packed=False)
    words = [*PLAIN, "sweep", "mnist-cnn", "--loader", "tensor", "--data-dir", str(digits), "-b", "10", "--epochs", "1", "--rounds", "2"]
    words += ["--device", "cpu", "-o", str(results)]
    one, two = {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}
    assert launch(words, env=one).returncode == 0
    (path,) = results.glob("cpu/*.json")
    job = load(path)
    job.records[0].rounds.pop()
    job.records[0].throughput = None
    save(job, path)
    done = launch(words, env=two)
    assert done.returncode == 2
    assert "was measured with OMP_NUM_THREADS=1, but it is 2 here" in done.stderr
    raw = digits / "MNIST" / "raw"
    sample_datasets.idx(raw / "train-images-idx3-ubyte", np.zeros((40, 28, 28)))
    sample_datasets.idx(raw / "train-labels-idx1-ubyte", np.arange(40) % 10)
    done = launch(words, env=one)
    assert done.returncode == 2
    assert f"the dataset has 40 images, but had {sample_datasets.MNIST_IMAGES} in earlier rounds" in done.stderr
    assert len(load(path).records[0].rounds) == 1
    sample_datasets.idx(raw / "train-images-idx3-ubyte", np.zeros((sample_datasets.MNIST_IMAGES, 28, 28)))
    sample_datasets.idx(raw / "train-labels-idx1-ubyte", np.arange(sample_datasets.MNIST_IMAGES) % 10)
    assert launch([f"{digits}/" if word == str(digits) else word for word in words], env=one).returncode == 0, "the same folder"
    assert len(load(path).records[0].rounds) == 2


@pytest.mark.slow
def test_concurrent_sweeps_cannot_write_one_journal(start: Callable[..., Any], launch: Callable[..., Any], results: Path) -> None:
    endless = [*PLAIN, *DISC, "-o", str(results)]
    endless[endless.index("--rounds") + 1] = "100000"
    running = start(endless)
    running.until(lambda: (results / FILE).exists() and bool(load(results / FILE).records[0].rounds))
    done = launch(endless)
    assert done.returncode == 2
    assert "another process is writing" in done.stderr
