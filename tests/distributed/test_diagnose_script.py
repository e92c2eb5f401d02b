"""Diagnoses of a user's own script: alone, on two ranks, and in every way that it can end early."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from launches import IMPATIENT, PLAIN, SUPPORT, TORCHRUN, errors, only_job, only_record
from scripts.limits import LAUNCHERS

from ddpbench.analysis.pipeline.model import MAX_WORKERS_PER_CORE
from ddpbench.machine.host import usable_cores
from ddpbench.record.bottleneck import TooShort
from ddpbench.record.io import load
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Job
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, COMPUTE_ONLY, LOADER_IN_BACKGROUND
from ddpbench.record.verdict import ChangeDataLoader
from ddpbench.script.diagnose.screening import PAIRS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

TRAIN = str(SUPPORT / "scripts" / "train.py")
SLOW_LOADER = [TRAIN, "--epochs", "500", "--batches", "100", "--sample-ms", "2", "--workers", "1", "--count"]
IMPATIENT_PLAIN = [sys.executable, str(SUPPORT / "impatient.py")]
Launch = Callable[..., Any]


def rounds_by_role(job: Job) -> dict[str, int]:
    return {record.role.kind: len(record.rounds) for record in job.records}


@pytest.fixture(scope="module")
def alone(launch_once: Launch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Job, Path]:
    """The diagnosis of a script whose loader is too slow, in one process."""
    results, flags = tmp_path_factory.mktemp("alone") / "runs", ["--time-limit", "25", "--fail-if-data-wait", "10%"]
    done = launch_once([*PLAIN, "diagnose", *flags, "-o", str(results), *SLOW_LOADER, "--losses", "--save"], cwd=results.parent)
    return done, only_job(results), results


def test_bottleneck_is_named_and_the_change_to_make(alone: tuple[Any, Job, Path]) -> None:
    done, job, _ = alone
    assert done.returncode == 4, done.stderr
    (message,) = errors(done.stderr)
    assert message.endswith("but --fail-if-data-wait allows 10%")
    baseline = job.records[0]
    assert (job.kind, baseline.role, baseline.status) == ("diagnose", BASELINE, "ok")
    assert baseline.verdict is not None
    assert baseline.verdict.kind == "data-bound"
    assert isinstance(baseline.verdict.next, ChangeDataLoader)
    assert (baseline.verdict.next.num_workers or 0) > 1
    assert re.search(r"^  use   DataLoader\(\.\.\., num_workers=\d+, persistent_workers=True\)", done.stderr, re.MULTILINE)


def test_control_runs_and_trials_are_on_record(alone: tuple[Any, Job, Path]) -> None:
    _, job, _ = alone
    found = rounds_by_role(job)
    assert {BASELINE.kind, COMPUTE_ONLY.kind, LOADER_IN_BACKGROUND.kind, BASELINE_REPEAT.kind, "trial"} <= set(found)
    assert min(found.values()) >= 3
    assert job.diagnosis is not None
    assert job.diagnosis.predictions
    (benchmark,) = job.diagnosis.loader_benchmarks
    assert benchmark.first_batch_s > 0
    assert job.records[0].data is not None
    assert job.records[0].data.respawns_workers
    (trial,) = (record for record in job.records if record.role.kind == "trial")
    assert trial.role.scenario in [each.scenario for each in job.diagnosis.predictions]
    assert trial.config.workers == trial.role.scenario.workers
    stats = job.records[0].rounds[0].traces[0].loader_stats
    assert stats is not None
    assert set(stats.cpu_s) == {"sample", "collate"}


def test_script_ends_early_and_runs_its_last_lines(alone: tuple[Any, Job, Path]) -> None:
    done, _, _ = alone
    assert done.stdout.splitlines()[-2:] == ["finally", "at exit"]
    assert "weights" not in done.stdout


def test_files_of_the_script_are_not_changed(alone: tuple[Any, Job, Path]) -> None:
    done, _, results = alone
    (note,) = re.findall(r"^ddpbench: note: (1 file of train\.py would have changed; .*)$", done.stderr, re.MULTILINE)
    scratch = Path(note.rpartition(" ")[2])
    assert not (results.parent / "model.pt").exists()
    assert list(scratch.rglob("model.pt")), "the script's own version"


def test_every_epoch_has_its_own_length(alone: tuple[Any, Job, Path]) -> None:
    done, _, _ = alone
    epochs = [line for line in done.stdout.splitlines() if line.startswith("batches")]
    assert len(epochs) >= 2
    assert set(epochs) == {"batches 100"}


def test_report_prints_the_same_page(alone: tuple[Any, Job, Path], launch: Launch) -> None:
    done, _, results = alone
    (path,) = results.glob("*.json")
    page = done.stderr[done.stderr.index("ddpbench diagnose  ") :].partition("\nddpbench: ")[0]
    assert launch([*PLAIN, "report", str(path)], cwd=results.parent).stdout.splitlines()[:-1] == page.splitlines()[:-1]
    assert load(path).records[0].script is not None


def test_two_ranks_of_ddp(launch: Launch, results: Path) -> None:
    done = launch([*TORCHRUN, "diagnose", "--time-limit", "32", "-o", str(results), *SLOW_LOADER, "--sample-ms", "6"], timeout=105)
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    assert all(record.world_size == 2 for record in job.records)
    assert job.records[0].verdict is not None
    assert job.records[0].verdict.kind == "data-bound"
    assert {"baseline", "compute_only", "trial"} <= set(rounds_by_role(job))
    assert job.diagnosis is not None
    assert [each.rank for each in job.diagnosis.loader_benchmarks] == [0, 1]
    assert job.diagnosis.single_rank_loader_benchmark is not None
    assert set(re.findall(r"batches \d+", done.stdout)) == {"batches 50"}, "a rank has half of the samples"


@pytest.mark.parametrize(
    "flags",
    [
        ["--accumulate", "4", "--data", "dict"],
        ["--persistent", "--data", "stream"],
        ["--new-loader", "--data", "object"],
        ["--workers", "0"],
    ],
)
def test_other_loops(launch: Launch, results: Path, flags: list[str]) -> None:
    done = launch([*PLAIN, "diagnose", "--time-limit", "9", "--no-verify", "-o", str(results), *SLOW_LOADER, *flags])
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    assert {"baseline", "compute_only"} <= set(rounds_by_role(job))
    assert job.records[0].verdict is not None
    assert job.diagnosis is not None
    assert [each.what for each in job.diagnosis.skipped] in ([], ["all_cores_loader_benchmarks"])  # a stream is read by one worker
    if "0" in flags:  # its loader mostly waits: with as many as keep up
        (benchmark,) = job.diagnosis.all_cores_loader_benchmarks
        assert benchmark.workers is not None
        assert 1 < benchmark.workers <= MAX_WORKERS_PER_CORE * usable_cores()


def test_validation_with_a_loader_that_accelerate_wraps_ends(launch: Launch, results: Path) -> None:
    """Its iterators have no length."""
    script = [str(SUPPORT.parent / "scripts" / "with_hf_trainer.py"), "--epochs", "40", "--samples", "320"]
    done = launch([*PLAIN, "diagnose", "--time-limit", "15", "-o", str(results), *script])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("eval_loss") >= 2
    assert only_job(results).records[0].verdict is not None


def test_batches_that_rank_0_loads_for_all_ranks_are_only_watched(launch: Launch, results: Path) -> None:
    script = [TRAIN, "--accelerate", "--data", "stream", "--epochs", "100000", "--batches", "2000"]
    done = launch([*LAUNCHERS["accelerate"], "-m", "ddpbench", "diagnose", "--time-limit", "30", "-o", str(results), *script])
    assert done.returncode == 0, done.stderr
    record = only_record(results)
    assert (record.status, record.world_size, record.sample_unit) == ("ok", 2, "sample")
    assert record.script is not None
    assert (record.script.only_watched, record.script.ended_early, record.script.step) == ("rank-0-loads", True, "batch")
    assert record.rounds
    assert all(trace.samples == trace.steps * 8 for timed in record.rounds for trace in timed.traces), "the share of one rank"
    assert record.verdict is not None


@pytest.mark.parametrize("name", ["own_iterable", "prefetcher"])
def test_script_without_a_loader_in_its_thread_gets_a_verdict(launch: Launch, results: Path, name: str) -> None:
    """The steps are updates. Nothing is tried."""
    script = [str(SUPPORT.parent / "scripts" / f"{name}.py"), "--epochs", "500"]
    done = launch([*PLAIN, "diagnose", "-o", str(results), *script])
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    (record,) = job.records
    assert (job.kind, job.diagnosis, record.status, record.role, record.sample_unit) == ("diagnose", None, "ok", BASELINE, "update")
    assert record.script is not None
    assert (record.script.only_watched, record.script.ended_early, record.script.step) == ("no-loader", True, "update")
    assert len(record.rounds) >= 5
    assert record.verdict is not None
    assert record.throughput is not None
    (path,) = results.glob("*.json")
    page = done.stderr[done.stderr.index("ddpbench diagnose  ") :]
    assert launch([*PLAIN, "report", str(path)], cwd=results.parent).stdout.splitlines()[:-1] == page.splitlines()[:-1]


def test_ranks_without_a_loader_end_at_the_same_update(launch: Launch, results: Path) -> None:
    script = [TRAIN, "--data", "list", "--epochs", "1000000", "--late-rank", "1"]
    done = launch([*TORCHRUN, "diagnose", "--time-limit", "9", "-o", str(results), *script])
    assert done.returncode == 0, done.stderr
    record = only_record(results)
    assert (record.status, record.world_size, record.sample_unit) == ("ok", 2, "rank update")
    assert record.script is not None
    assert record.script.only_watched == "no-loader"
    assert 1 <= len(record.rounds) <= 4
    assert {len(timed.traces) for timed in record.rounds} == {2}


@pytest.mark.parametrize(("batches", "status"), [(200, "ok"), (12, "failed")])
def test_script_without_a_loader_that_ends_itself(launch: Launch, results: Path, batches: int, status: str) -> None:
    done = launch([*PLAIN, "diagnose", "-o", str(results), TRAIN, "--data", "list", "--batches", str(batches)])
    assert done.returncode == int(status == "failed"), done.stderr
    assert "weights" in done.stdout
    record = only_record(results)
    assert (record.status, bool(record.rounds)) == (status, status == "ok")
    assert (f"made {batches} updates, not from batches of a DataLoader" in done.stderr) == (status == "failed")


def test_script_that_trains_in_other_processes_ends_at_the_start_limit(launch: Launch, results: Path) -> None:
    flags = ["--start-limit", "20", "-o", str(results)]  # a slow machine imports torch for ten seconds
    done = launch([*PLAIN, "diagnose", *flags, str(SUPPORT / "scripts" / "spawned.py"), "100"], timeout=90)
    assert done.returncode == 1, done.stderr
    assert "spawned.py has made no step with an optimizer for 20 s: spawned.py:" in done.stderr
    assert "what it trains in processes that it starts is not watched" in done.stderr
    assert (only_record(results).status, only_record(results).rounds) == ("failed", [])


def test_script_that_trains_in_a_thread(launch: Launch, results: Path) -> None:
    stuck = [str(SUPPORT / "scripts" / "stuck.py"), "--thread"]
    done = launch([*PLAIN, "diagnose", "--time-limit", "12", "--no-verify", "-o", str(results), *stuck])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "joined\n"
    assert "Traceback" not in done.stderr
    assert {"baseline", "compute_only"} <= set(rounds_by_role(only_job(results)))


def test_child_that_trains_on_ends_with_the_diagnosis(launch: Launch, results: Path) -> None:
    stuck = [str(SUPPORT / "scripts" / "stuck.py"), "--fork"]
    done = launch([*PLAIN, "diagnose", "--time-limit", "8", "--no-verify", "-o", str(results), *stuck])
    assert done.returncode == 0, done.stderr
    (child,) = re.findall(r"child (\d+)", done.stdout)
    assert not psutil.pid_exists(int(child))


def test_limit_that_is_over_before_the_first_window_asks_for_a_longer_one(launch: Launch, results: Path) -> None:
    script = [TRAIN, "--epochs", "500", "--batches", "100", "--sample-ms", "100"]
    done = launch([*PLAIN, "diagnose", "--time-limit", "0.5", "-o", str(results), *script])
    assert done.returncode == 1, done.stderr
    assert re.search(r"\d+ batches in 1 epoch are too few for a round \(a longer --time-limit\); record: ", done.stderr)
    assert only_record(results).status == "failed"


def test_script_that_ends_itself(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "diagnose", "-o", str(results), TRAIN, "--batches", "4"])
    assert done.returncode == 1
    assert re.search(r"^ddpbench: note: 4 batches in 1 epoch are too few for a round", done.stderr, re.MULTILINE)
    assert "weights" in done.stdout
    assert only_record(results).status == "failed"


def test_training_that_ends_before_its_windows_is_judged_by_all_of_its_steps(launch: Launch, results: Path) -> None:
    """But for those on other batches. The loader benchmark, for which it waited, belongs to none."""
    done = launch([*PLAIN, "diagnose", "-o", str(results), TRAIN, "--batches", "40", "--epochs", "5", "--sample-ms", "2"])
    assert done.returncode == 0, done.stderr
    record = only_job(results).records[0]
    assert record.verdict is not None
    assert record.verdict.kind == "data-bound"
    assert len(record.rounds) >= 3
    assert max(ms for timed in record.rounds for ms in timed.traces[0].phases_ms["data"]) < 900


FOUR_BATCHES = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2):
    model(batch).sum().backward()
    optimizer.step()
"""

LAST_PRODUCER = f"""{FOUR_BATCHES}
import queue, threading
full = queue.Queue(1)
full.put(0)
threading.Thread(target=full.put, args=(1,)).start()
"""


def test_thread_that_never_ends_does_not_keep_the_process(launch: Launch, results: Path, tmp_path: Path) -> None:
    (tmp_path / "producer.py").write_text(LAST_PRODUCER)
    done = launch([*PLAIN, "diagnose", "-o", str(results), "producer.py"], cwd=tmp_path, timeout=60)
    assert done.returncode == 1, "too few steps for a verdict"
    assert only_record(results).rounds == []


HOARDER = f"""
import os
import torch
from pathlib import Path
rank = os.environ["RANK"]
Path(f"model-{{rank}}.pt").write_bytes(bytes(120_000_000 if rank == "0" else 30_000_000))
torch.distributed.init_process_group("gloo")
torch.distributed.barrier()  # a rank that ends first, without a verdict, ends the others
{FOUR_BATCHES}
"""


def test_ranks_share_a_scratch_folder_whose_size_is_named_and_that_can_be_removed(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "hoarder.py").write_text(HOARDER)
    (temp := tmp_path / "temp").mkdir()
    done = launch([*PLAIN, "diagnose", "--gpus", "2", "hoarder.py"], cwd=tmp_path, env={"TMPDIR": str(temp)})
    (folder,) = temp.glob("ddpbench-scratch-*")
    assert [path.name for path in sorted(folder.rglob("model-*"))] == ["model-0.pt", "model-1.pt"]
    assert not list(tmp_path.glob("model*"))
    (note,) = re.findall(r"^ddpbench: note: the scratch folder (\S+) takes 1\d\d MB; ", done.stderr, re.MULTILINE)
    assert note == str(folder)
    cleaned = launch([*PLAIN, "env", "--clean"], env={"TMPDIR": str(temp)}).stdout
    assert (cleaned.startswith("removed 1 scratch folder of "), folder.exists()) == (True, False)


TOUCHER = f"""{FOUR_BATCHES}
import subprocess
subprocess.run(["touch", "best.pt"])
open("kept.pt", "w").write("new")
"""


def test_files_that_a_program_has_changed_nevertheless_are_named(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "toucher.py").write_text(TOUCHER)
    for name in ("best.pt", "kept.pt"):
        (tmp_path / name).write_text("old")
    done = launch([*PLAIN, "diagnose", "toucher.py"], cwd=tmp_path)
    if "this kernel lacks Landlock" in done.stderr:
        pytest.skip("the program is refused")
    (note,) = re.findall(r"^ddpbench: note: while toucher.py ran, .*$", done.stderr, re.MULTILINE)
    assert note.endswith(": best.pt")
    assert (tmp_path / "kept.pt").read_text() == "old"


DENIED = f"""{FOUR_BATCHES}
import ctypes, os
if ctypes.CDLL(None, use_errno=True).open(b"best.pt", os.O_WRONLY) < 0:
    raise OSError(ctypes.get_errno(), "cannot save", "best.pt")
"""


def test_script_that_the_kernel_denies_a_write_is_said_to_be_stopped_by_the_diagnosis(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "denied.py").write_text(DENIED)
    (tmp_path / "best.pt").write_text("old")
    done = launch([*PLAIN, "diagnose", "-o", "runs", "denied.py"], cwd=tmp_path)
    if "this kernel lacks Landlock" in done.stderr:
        pytest.skip("a kernel without Landlock")
    assert done.returncode == 1
    assert "ddpbench: note: refused to write: best.pt (a diagnosis must not change files of the script; ddpbench watch" in done.stderr
    record = only_record(tmp_path / "runs")
    assert (record.status, record.fault is not None) == ("failed", True)


def test_script_that_fails(launch: Launch, results: Path) -> None:
    done = launch([*PLAIN, "diagnose", "-o", str(results), TRAIN, "--batches", "4", "--fail"])
    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stderr
    assert only_record(results).fault is not None


def test_script_that_hangs_is_ended_after_the_time_limit(launch: Launch, results: Path) -> None:
    stuck = [str(SUPPORT / "scripts" / "stuck.py"), "--what", "sleep", "--at", "60"]
    done = launch([*IMPATIENT, "diagnose", "--time-limit", "4", "-o", str(results), *stuck])
    (note,) = re.findall(r"^ddpbench: note: stuck\.py has made no step .*$", done.stderr, re.MULTILINE)
    assert note.endswith("its process ends now")
    record = only_job(results).records[0]
    assert (record.status, record.fault is not None) == ("hung", True)
    assert record.rounds
    assert record.verdict is not None
    assert done.returncode == int(isinstance(record.verdict.evidence, TooShort)), "torchrun turns every failure into 1"
    page = done.stderr[done.stderr.index("ddpbench diagnose  ") :]
    (path,) = results.glob("*.json")
    assert launch([*PLAIN, "report", str(path)]).stdout.splitlines()[:12] == page.splitlines()[:12]


def test_missing_script_is_one_line(launch: Launch) -> None:
    done = launch([*PLAIN, "diagnose", "missing.py"])
    assert (done.returncode, errors(done.stderr)) == (2, ["cannot run 'missing.py': no such file"])


def test_worker_of_a_trial_that_dies_ends_the_trial_only(launch: Launch, results: Path) -> None:
    """The process with the highest worker number, which only the trial has, kills itself after some batches."""
    done = launch([*IMPATIENT_PLAIN, "diagnose", "--time-limit", "15", "-o", str(results), *SLOW_LOADER, "--fatal-worker", "1"])
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    (trial,) = (record for record in job.records if record.role.kind == "trial")
    assert (trial.status, trial.fault is not None) == ("failed", True)
    assert job.records[0].status == "ok"
    assert "Traceback" not in done.stderr


def test_workers_that_fit_only_without_those_of_the_script_take_turns_with_them(launch: Launch, tmp_path: Path) -> None:
    """Shared memory holds nine batches: those of six workers or, beside the script's own, of three."""
    if os.geteuid() != 0:
        pytest.skip("a small /dev/shm is mounted, which needs root")
    program = [*PLAIN, "diagnose", "--time-limit", "30", "-o", "runs", str(SUPPORT / "scripts" / "volumes.py")]
    mounted = f"mount -t tmpfs -o size={9 * 5_200_000} tmpfs /dev/shm && exec {shlex.join(program)}"
    done = launch(["unshare", "-m", "bash", "-c", mounted], cwd=tmp_path)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this machine does not let root mount")
    assert done.returncode == 0, done.stderr
    job = only_job(tmp_path / "runs")
    (trial,) = (record for record in job.records if record.role.kind == "trial")
    assert (trial.role.scenario, trial.status) == (Scenario(workers=6, prefetch=1), "ok")
    assert len(trial.rounds) >= 3
    assert "/dev/shm has room for 6" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.cuda
@pytest.mark.timeout(340)  # Triton compiles the kernels first
def test_fused_kernels_are_screened_in_a_script_that_waits_for_nothing(launch: Launch, tmp_path: Path) -> None:
    script = [str(SUPPORT / "scripts" / "convolutions.py"), "512", "224"]
    done = launch([*PLAIN, "diagnose", "--time-limit", "240", "-o", str(tmp_path), *script], timeout=320.0)
    job = only_job(tmp_path)
    baseline = job.records[0]
    assert baseline.config.channels_last, done.stderr
    assert baseline.config.pin_memory  # the script itself pins its dataset
    assert job.diagnosis
    assert job.diagnosis.screening, done.stderr
    trials = {each.code: each for each in job.diagnosis.screening.cures}
    assert trials["channels-last"].obstacle == "already-on"
    assert len(trials["fused-kernels"].with_s) == PAIRS, trials
