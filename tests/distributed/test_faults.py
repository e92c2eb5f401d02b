"""Real faults on two gloo ranks: one error line, the right rank, a readable record, no process left."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import sample_datasets
from commands import refused
from launches import FAULT_REPORT_S, PLAIN, SMALL, SUPPORT, SUPPORT_ENV, TORCHRUN, TORCHRUN_S, errors, only_record, rounds_on_disk

from ddpbench.record.io import load

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def faulty(start: Callable[..., Any], results: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run a misbehaving workload under torchrun; it must end promptly after the fault and leave no process.

    ``unseen_s`` is how long the fault must stay unnoticed.
    """

    def run(workload: str, *flags: str, rank: int = 1, step: int = 0, unseen_s: float = 0.0) -> Any:
        fault = tmp_path / "fault"
        environment = {**SUPPORT_ENV, "FAULT_RANK": str(rank), "FAULT_STEP": str(step), "FAULT_STAMP": str(fault)}
        running = start([*TORCHRUN, f"misbehaving:{workload}", *SMALL, *flags, "-o", str(results)], env=environment)
        running.until(fault.exists)
        done = running.wait(unseen_s + FAULT_REPORT_S + TORCHRUN_S)
        assert running.left_behind() == []
        (record,) = results.glob("*.json")
        assert unseen_s <= record.stat().st_mtime - fault.stat().st_mtime < unseen_s + FAULT_REPORT_S
        return done

    return run


@pytest.mark.slow
def test_rank_that_raises_is_reported_once(faulty: Callable[..., Any], results: Path) -> None:
    done = faulty("raises", rank=1, step=9)
    assert done.returncode != 0
    (error,) = errors(done.stderr)
    assert re.match(r"ValueError on rank 1 \(.*\) at step 9 \(forward\): the model has had enough", error)
    assert done.stderr.count("the model has had enough") == 2, "once in our error line, once in torchrun's banner"
    record = only_record(results)
    assert record.status == "failed"
    assert record.fault is not None
    assert (record.fault.rank, record.fault.step, record.fault.phase) == (1, 9, "forward")


@pytest.mark.slow
def test_killed_rank_is_reported_and_its_rounds_are_kept(faulty: Callable[..., Any], launch: Callable[..., Any], results: Path) -> None:
    """Rank 0, which writes the record; the next test kills others."""
    done = faulty("killed", "--steps", "20", rank=0, step=70)
    (error,) = errors(done.stderr)
    said = r"rank 0 \(.*\) killed \(SIGKILL\?\): last heartbeat at step (\d+) \([a-z ]+\), at most 0\.25 s before it died"
    seen = re.fullmatch(said, error)
    assert seen is not None, error
    assert int(seen[1]) <= 71, "the heartbeat is at most one step old"
    assert "; finished rounds are in " in done.stderr
    record = only_record(results)
    assert record.fault is not None
    assert record.fault.step == int(seen[1])
    assert (record.status, record.fault and record.fault.rank) == ("failed", 0)
    assert len(record.rounds) >= 1
    assert all(len(timed.traces) == 2 for timed in record.rounds)
    report = launch([*PLAIN, "report", *map(str, results.glob("*.json"))]).stdout
    assert re.search(rf"^failed: rank 0 .* killed .*, {len(record.rounds)}\s+of\s+5\s+rounds", report, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_several_dead_ranks_are_counted_and_the_first_is_named(start: Callable[..., Any], results: Path) -> None:
    three_ranks = [*TORCHRUN[:4], "--nproc_per_node=3", *TORCHRUN[-2:]]
    running = start([*three_ranks, "misbehaving:fine", *SMALL, "--rounds", "100000", "-o", str(results)], env=SUPPORT_ENV)
    running.until(lambda: rounds_on_disk(results) >= 2)
    for placement in only_record(results).environment.placements[1:]:
        os.kill(placement.pid, signal.SIGKILL)
    done = running.wait(FAULT_REPORT_S + TORCHRUN_S)
    assert running.left_behind() == []
    (error,) = errors(done.stderr)
    assert re.match(r"rank 1 \(.*\) and 1 more killed \(SIGKILL\?\): last heartbeat at step \d+ ", error), error
    record = only_record(results)
    assert (record.status, record.fault and record.fault.rank) == ("failed", 1)
    assert len(record.rounds) >= 2


@pytest.mark.slow
def test_rank_out_of_memory_reports_batch_size_and_peak(faulty: Callable[..., Any], results: Path) -> None:
    done = faulty("exhausts", rank=1, step=3)
    (error,) = errors(done.stderr)
    figures = re.fullmatch(
        r"out of memory at batch 8 on rank 1 \(.*\) at step 3 \(forward\): peak ([\d.]+) of ([\d.,]+) GiB, 4,194,304 GiB more requested",
        error,
    )
    assert figures is not None, error
    assert 0.05 < float(figures[1]) < float(figures[2].replace(",", "")), "peak of the rank, of the host's memory"
    assert "hint: use a smaller batch: -b N\n" in done.stderr, "no round was finished"
    assert only_record(results).status == "failed"


@pytest.mark.slow
def test_hang_reports_the_late_rank_with_step_and_stack(faulty: Callable[..., Any], results: Path) -> None:
    done = faulty("hangs", "--hang-timeout", "4", rank=1, step=8, unseen_s=4)
    (error,) = errors(done.stderr)
    assert re.match(r"rank 1 \(.*\) hung at step 8 \(forward\): no progress for \d+ s", error)
    assert "_hang (misbehaving.py" in done.stderr
    record = only_record(results)
    assert (record.status, record.fault and record.fault.rank) == ("hung", 1)


@pytest.mark.slow
def test_frozen_rank_is_reported_if_all_ranks_stall(faulty: Callable[..., Any], results: Path) -> None:
    """All ranks made the same progress, but one stopped sending heartbeats."""
    done = faulty("freezes", "--hang-timeout", "4", rank=1, step=8, unseen_s=4)
    (error,) = errors(done.stderr)
    assert re.match(r"rank 1 \(.*\) hung at step 8 \(forward\): no progress for \d+ s", error)
    assert "hint: rank 1 was in code that blocks its watchdog thread" in done.stderr
    record = only_record(results)
    assert (record.status, record.fault and record.fault.rank) == ("hung", 1)


@pytest.mark.slow
def test_hung_dataloader_worker_is_reported(start: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    tree = sample_datasets.image_tree(tmp_path / "tree")
    words = ["resnet18", *SMALL, "-b", "2", "--image-size", "32", "--rounds", "100000", "--loader", "torch", "-j", "2"]
    running = start([*PLAIN, *words, "--data-dir", str(tree), "--hang-timeout", "4", "-o", str(results)])
    running.until(lambda: any(record.rounds for path in results.glob("*.json") if path.stat().st_size for record in load(path).records))
    worker = psutil.Process(running.pid).children()[1]
    worker.suspend()
    done = running.wait(4 + FAULT_REPORT_S)
    assert done.returncode == 124
    (error,) = errors(done.stderr)
    assert re.match(r"rank 0 \(.*\) hung at step \d+ \(data\): no progress for \d+ s", error)
    assert f"; loader worker {worker.pid} (stopped) has not delivered its batch; " in done.stderr
    assert running.left_behind() == []


@pytest.mark.slow
def test_nan_loss_makes_the_run_invalid_without_a_figure(faulty: Callable[..., Any], results: Path) -> None:
    done = faulty("poisoned", rank=0, step=9)
    assert done.returncode != 0
    record = only_record(results)
    assert (record.status, record.throughput) == ("invalid", None)
    assert "nonfinite-loss" in {check.code for check in record.checks}
    assert not re.search(r"\d images/s", done.stdout)


@pytest.mark.slow
def test_ranks_with_different_versions_are_rejected(launch: Callable[..., Any], results: Path) -> None:
    done = launch(
        [*TORCHRUN[:-2], str(SUPPORT / "version_mismatch.py"), "misbehaving:fine", *SMALL, "-o", str(results)],
        env=SUPPORT_ENV,
    )
    assert done.returncode != 0
    assert len(errors(done.stderr)) == 1
    assert re.search(r"ranks differ:\n  rank 0 .*ddpbench 0\.\d.*\n  rank 1 .*ddpbench 99", done.stderr)
    assert not list(results.glob("*.json")), "rejected before the run"


def test_existing_json_file_is_not_overwritten(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "run.json"
    target.write_text("mine")
    words = ["misbehaving:fine", *SMALL, "--gpus", "2", "-o", str(results), "--json", str(target)]
    assert "--force" in refused(shlex.join(words), capsys)
    assert target.read_text() == "mine"


@pytest.mark.slow
def test_existing_json_file_is_overwritten_with_force(launch: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_text("mine")
    words = [*PLAIN, "misbehaving:fine", *SMALL, "--rounds", "1", "-o", str(results), "--json", str(target), "--force"]
    assert launch(words, env=SUPPORT_ENV).returncode == 0
    assert load(target).records[0].status == "ok"


@pytest.fixture
def on_small_disk(launch: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """``on_small_disk(size, before, flags, after)`` runs a workload on a small tmpfs, with shell commands around it."""
    if os.geteuid() != 0:
        pytest.skip("a full disk is made by mounting a small one, which needs root")
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(size: str, before: str, flags: str, after: str) -> Any:
        program = f"{sys.executable} -m ddpbench misbehaving:fine {' '.join(SMALL)} --steps 400 {flags}"
        full = f"cd {disk} && {before}{program}; code=$?; {after}"
        script = f"mount -t tmpfs -o size={size} tmpfs {disk} && {full}; cd /; umount {disk}; exit $code"
        done = launch(["unshare", "-m", "bash", "-c", script], env=SUPPORT_ENV)
        if "Operation not permitted" in done.stderr:
            pytest.skip("this machine does not let root mount")
        return done

    return run


@pytest.mark.slow
def test_full_disk_loses_the_file_but_not_the_report(on_small_disk: Callable[..., Any], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    done = on_small_disk("64k", "", f"-o {disk}", f"ls -A {disk}; cp {disk}/*.json {tmp_path}/kept.json")
    assert done.returncode == 1
    assert "images/s" in done.stdout
    assert "No space left on device" in errors(done.stderr)[0]
    assert ".tmp" not in done.stdout, "no temporary file is left"
    load(tmp_path / "kept.json")  # the last complete version


@pytest.mark.slow
@pytest.mark.parametrize("old", ["", "mine"], ids=["new", "--force"])
def test_full_disk_keeps_the_existing_json_file(on_small_disk: Callable[..., Any], results: Path, tmp_path: Path, old: str) -> None:
    flags = f"-o {results} --json {tmp_path}/disk/run.json {'--force' if old else ''}"
    done = on_small_disk("16k", f"printf %s {old} >run.json; " if old else "", flags, "echo ---; ls -A; cat run.json")
    assert done.returncode == 1
    assert "No space left on device" in errors(done.stderr)[0]
    report, _, kept = done.stdout.partition("---\n")
    assert "images/s" in report
    assert kept == (f"run.json\n{old}" if old else ""), "the old file unchanged or none, and no temporary file"
    assert only_record(results).status == "ok"


@pytest.mark.slow
def test_closed_stdout_still_saves_the_record(launch: Callable[..., Any], results: Path) -> None:
    words = f"{sys.executable} -m ddpbench misbehaving:fine {' '.join(SMALL)} --rounds 2 -o {results} | true"
    done = launch(["bash", "-c", words], env=SUPPORT_ENV)
    assert "Traceback" not in done.stderr
    assert only_record(results).status == "ok"


@pytest.mark.slow
def test_concurrent_runs_write_separate_records(start: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, "misbehaving:fine", *SMALL, "--rounds", "2", "-o", str(results)]
    both = [start(words, env=SUPPORT_ENV) for _ in range(2)]
    assert [one.wait(60).returncode for one in both] == [0, 0]
    assert [record.status for path in results.glob("*.json") for record in load(path).records] == ["ok", "ok"]


def test_unavailable_gpus_are_rejected_without_a_run(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(shlex.join(["misbehaving:fine", "--gpus", "64", "-o", str(results)]), capsys)
    assert re.match(r"--gpus 64, but this machine has (no GPU|\d+ GPU)", errors(said)[0])
    assert "torchrun" not in said
    assert not results.exists()


@pytest.mark.slow
def test_torchrun_output_is_hidden_after_a_rank_reports_its_error(launch: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tree" / "empty").mkdir(parents=True)
    words = [*PLAIN, "resnet18", "--gpus", "2", *SMALL, "--image-size", "32", "-b", "2", "--data-dir", str(tmp_path / "tree")]
    done = launch([*words, "-o", str(tmp_path / "results")])
    started, error, hint = done.stderr.splitlines()
    assert (done.returncode, started[:8]) == (2, "torchrun")
    assert error == f"ddpbench: error: no images in the class folder '{tmp_path / 'tree' / 'empty'}'"
    assert hint.startswith("hint: ")


@pytest.mark.slow
def test_torchrun_output_is_shown_if_no_rank_reported_an_error(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, "misbehaving:killed", "--gpus", "1", *SMALL, "-o", str(results)]
    done = launch(words, env={**SUPPORT_ENV, "FAULT_RANK": "0", "FAULT_STEP": "1"})
    assert done.returncode == 1
    assert "(exitcode: -9)" in done.stderr
