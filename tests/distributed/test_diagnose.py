"""Real diagnoses: interleaved arms, control runs and the time limit."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import open_loaders
import pytest
import torch
from launches import PLAIN, SHORT_DIAGNOSIS, SUPPORT, SUPPORT_ENV, TORCHRUN, errors, only_job
from sample_datasets import image_tree
from training import InMemory, world_of_one

from ddpbench.analysis.whatif.measured import delivery_ratio, round_step_times_s
from ddpbench.bench.diagnose.alternatives import round_with_background_loader
from ddpbench.bench.diagnose.context import DiagnosisContext
from ddpbench.bench.diagnose.control_runs import control_runs, with_loader
from ddpbench.bench.diagnose.loaders import BackgroundLoader, LoaderFactories
from ddpbench.bench.job_spec import JobContext
from ddpbench.bench.resolve import resolve_config
from ddpbench.data.device_copy import DeviceLoader
from ddpbench.data.loaders.open import open_host_loader
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import Config
from ddpbench.record.errors import BenchError, ConfigFailed, UsageError
from ddpbench.record.io import load
from ddpbench.record.loader_stats import STAGES
from ddpbench.record.record import Job
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, INDEPENDENT, LOADER_IN_BACKGROUND, REPLAY
from ddpbench.report.messages.roles import role_name
from ddpbench.report.progress import NullProgress

pytestmark = pytest.mark.timeout(150)


def turns(stderr: str) -> list[str]:
    """Labels of the arms in the order in which their rounds ended."""
    return re.findall(r"^ddpbench: round \d+ of \d+: \S+ \((.+?)\): [\d.,]+ images/s", stderr, re.MULTILINE)


def by_label(job: Job) -> dict[str, Any]:
    return {record.role: record for record in job.records}


@pytest.mark.slow
def test_two_ranks_run_a_diagnosis(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*TORCHRUN, *SHORT_DIAGNOSIS, "--rounds", "1", "--time-limit", "90", "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("synthetic data need no loader; diagnosing loader torch") == 1
    job = only_job(results)
    assert (job.kind, [record.role for record in job.records]) == (
        "diagnose",
        [BASELINE, COMPUTE_ONLY, LOADER_IN_BACKGROUND, REPLAY, INDEPENDENT],
    )
    assert all((record.status, len(record.rounds)) == ("ok", 1) for record in job.records)

    records = by_label(job)
    assert {label: record.config.loader for label, record in records.items()} == {
        BASELINE: "torch",
        COMPUTE_ONLY: "synthetic",
        LOADER_IN_BACKGROUND: "torch",
        REPLAY: "torch",
        INDEPENDENT: "synthetic",
    }
    assert records[BASELINE].data.loader == "torch"
    assert records[LOADER_IN_BACKGROUND].data.loader == records[COMPUTE_ONLY].data.loader == "synthetic", (
        "what is trained on lies on the device"
    )
    assert records[LOADER_IN_BACKGROUND].rounds[0].traces[0].memory.workers_rss_bytes, "a worker is running"
    assert records[REPLAY].rounds[0].traces[0].memory.workers_rss_bytes is None
    last = [trace.numerics.params_checksum_after for trace in records[INDEPENDENT].rounds[-1].traces]
    assert last[0] != last[1], "ranks train independently"
    assert records[INDEPENDENT].rounds[-1].params_in_sync, "independent ranks are not reported as out of sync"
    assert all(timed.params_in_sync for timed in records[COMPUTE_ONLY].rounds)

    found = job.diagnosis
    assert found is not None
    assert found.loader == "torch"
    assert [alone.rank for alone in found.loader_benchmarks] == [0, 1]
    for alone in (*found.loader_benchmarks, found.single_rank_loader_benchmark):
        assert alone is not None
        assert alone.samples == len(alone.intervals_ms) * 8
        assert sum(alone.intervals_ms) / 1e3 == pytest.approx(alone.elapsed_s, rel=0.01)
        assert alone.first_batch_s > 0
        assert alone.loader_cpu_s > 0, "its worker uses the CPU"
    assert [each.affinity_cores for each in found.node_states] == [len(os.sched_getaffinity(0))]
    assert {each.what: each.reason for each in found.skipped} == {"storage": "dataset_in_memory", "h2d_bandwidth": "cpu_ranks"}
    assert errors(done.stderr) == []


@pytest.mark.slow
def test_image_folder_diagnosis_measures_storage(launch: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    tree = image_tree(tmp_path / "tree", images=16)
    words = ["diagnose", "resnet18", "--no-verify", "--device", "cpu", "--image-size", "64", "-b", "2", "-j", "1", "--data-dir", str(tree)]
    done = launch([*TORCHRUN, *words, "--steps", "3", "--rounds", "2", "--warmup", "1", "-o", str(results)])
    assert done.returncode == 0, done.stderr
    assert "synthetic data need no loader" not in done.stderr
    assert turns(done.stderr) == [*(labels := [role_name(record.role) for record in only_job(results).records]), *reversed(labels)]
    found = only_job(results).diagnosis
    assert found is not None
    assert found.storage is not None
    assert found.storage.num_files == 64
    for alone in found.loader_benchmarks:
        assert alone.loader_stats is not None
        assert alone.loader_stats.samples == alone.samples
        assert {"read", "decode", "augment", "collate"} <= set(alone.loader_stats.cpu_s) <= set(STAGES)
    loadings = [trace.loader_stats for timed in by_label(only_job(results))[BASELINE].rounds for trace in timed.traces]
    assert all(loading is not None and loading.samples == 6 for loading in loadings)


@pytest.mark.slow
def test_single_process_diagnosis_has_no_independent_control(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, *SHORT_DIAGNOSIS, "--rounds", "1", "--loader", "tensor", "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    assert [record.role for record in job.records] == [BASELINE, COMPUTE_ONLY]
    assert job.diagnosis is not None
    assert {each.what for each in job.diagnosis.skipped} == {
        LOADER_IN_BACKGROUND,
        REPLAY,
        "h2d_bandwidth",
        "alternative_loaders",
        "storage",
    }
    assert job.diagnosis.loader_benchmarks[0].samples_per_s > 0


@pytest.mark.slow
def test_background_loader_round_measures_slowdown_and_delivery() -> None:
    asked = Config(workload="situations.workloads:light_cifar", loader="situations.spoilt:far_away", workers=1, device="cpu")
    settled = resolve_config(asked, False, 1)
    scene = DiagnosisContext(
        JobContext([settled], world_of_one(), ProgressMarker(60.0), None, NullProgress(), perf_counter()),
        asked,
        settled,
        LoaderFactories(),
        0.3,
    )
    timed = round_with_background_loader(scene, settled)
    assert timed is not None
    steps_ms = [1000 * span for span in round_step_times_s(timed)]
    assert len(steps_ms) >= 4
    assert min(steps_ms) > 1, "eight images of 2 ms each"
    kept = delivery_ratio([timed])
    assert kept is not None
    assert 0 < kept < 1, "a sample takes 12 ms"


@pytest.mark.slow
def test_background_loader_round_that_runs_out_of_memory_is_skipped() -> None:
    asked = Config(workload="misbehaving:exhausts", loader="situations.spoilt:far_away", workers=1, device="cpu")
    settled = resolve_config(asked, False, 1)
    scene = DiagnosisContext(
        JobContext([settled], world_of_one(), ProgressMarker(60.0), None, NullProgress(), perf_counter()),
        asked,
        settled,
        LoaderFactories(),
        0.3,
    )
    with pytest.raises(ConfigFailed, match=r"^out of memory: "):
        round_with_background_loader(scene, settled)
    assert not multiprocessing.active_children(), "its workers have exited"


@pytest.mark.slow
def test_alternative_loader_must_be_available_on_every_rank(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Ranks with different loaders would deadlock."""
    tree, bare = image_tree(tmp_path / "tree"), image_tree(tmp_path / "bare", classes=1, images=1)
    done = launch([*TORCHRUN[:-2], str(SUPPORT / "alternative_loaders.py"), str(tree), str(tree), str(bare)])
    assert done.returncode == 0, done.stderr
    (alike, other_alike), (unlike, other_unlike) = json.loads(done.stdout)
    assert (alike, unlike) == (other_alike, other_unlike)
    assert "torch-uint8" in alike
    assert "torch-uint8" not in unlike


@pytest.mark.slow
def test_measurements_without_time_left_are_listed_as_skipped(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, *SHORT_DIAGNOSIS, "--rounds", "1000", "--time-limit", "0.5", "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    assert job.diagnosis is not None
    assert len(by_label(job)[BASELINE].rounds) == 1, "the baseline is always measured"
    no_time = {each.what for each in job.diagnosis.skipped if each.reason == "no_time_left"}
    assert no_time == {"node_states", "loader_benchmarks", "alternative_loaders", COMPUTE_ONLY, LOADER_IN_BACKGROUND, REPLAY}
    assert job.diagnosis.loader_benchmarks == []


@pytest.mark.slow
def test_signal_keeps_completed_measurements(start: Callable[..., Any], results: Path) -> None:
    running = start([*TORCHRUN, *SHORT_DIAGNOSIS, "--rounds", "100000", "--time-limit", "600", "-o", str(results)], env=SUPPORT_ENV)
    running.until(lambda: any(len(load(path).records[1].rounds) >= 1 for path in results.glob("*.json") if path.stat().st_size))
    os.kill(running.pid, signal.SIGTERM)
    done = running.wait(20)
    (said,) = errors(done.stderr)
    assert said.startswith("interrupted by SIGTERM")
    job = only_job(results)
    assert {record.status for record in job.records} == {"interrupted"}
    assert job.diagnosis is not None
    assert len(job.diagnosis.loader_benchmarks) == 2
    assert running.left_behind() == []


# planned arms


@pytest.mark.parametrize(
    ("asked", "loader"),
    [
        (Config(workload="resnet18"), "torch"),
        (Config(workload="resnet18", loader="synthetic"), "torch"),
        (Config(workload="resnet18", loader="dali-cpu"), "dali-cpu"),
        (Config(workload="mnist-cnn", loader="synthetic"), "torch"),
        (Config(workload="disc-mlp-3"), "tensor"),
    ],
    ids=lambda value: value.workload if isinstance(value, Config) else value,
)
def test_synthetic_loader_is_diagnosed_as_the_default_loader(asked: Config, loader: str) -> None:
    assert with_loader(asked) == msgspec.structs.replace(asked, loader=loader)


def test_workload_without_loader_cannot_be_diagnosed() -> None:
    with pytest.raises(UsageError) as refused:
        with_loader(Config(workload="gemm-mlp"))
    assert refused.value.hint == "use 'ddpbench run gemm-mlp'"


def test_compute_only_control_changes_only_the_loader() -> None:
    real = Config(workload="resnet18", loader="torch", data_dir="there", workers=3, precision="fp32", engine="accelerate")
    cells, skipped = control_runs(real, world_size=2)
    configs = {cell.role: cell.config for cell in cells}
    real = msgspec.structs.replace(real, warmup=2)
    resident = msgspec.structs.replace(real, loader="synthetic", data_dir=None)
    assert configs == {
        BASELINE: real,
        COMPUTE_ONLY: resident,
        LOADER_IN_BACKGROUND: real,
        REPLAY: real,
        INDEPENDENT: msgspec.structs.replace(resident, engine="none"),
    }
    assert skipped == []


def test_requested_warmup_applies_to_all_arms() -> None:
    cells, _ = control_runs(Config(workload="resnet18", loader="torch", warmup=7), world_size=1)
    assert {cell.config.warmup for cell in cells} == {7}


def test_loader_without_workers_has_no_background_control() -> None:
    cells, skipped = control_runs(Config(workload="vgg16-cifar10", loader="torch", workers=0), world_size=1)
    assert [cell.role for cell in cells] == [BASELINE, COMPUTE_ONLY, REPLAY]
    assert [each.what for each in skipped] == [LOADER_IN_BACKGROUND]


def test_each_round_uses_a_new_file_order_shared_by_all_ranks() -> None:
    config = Config(workload="resnet18", seed=2**32 - 1)
    mine, theirs = LoaderFactories(), LoaderFactories()
    seeds = [mine.with_new_file_order(config).seed for _ in range(3)]
    assert len({config.seed, *seeds}) == 4
    assert seeds == [theirs.with_new_file_order(config).seed for _ in range(3)]


# background loader


class Counted:
    """A background loader that returns a batch whenever it is allowed to."""

    def __init__(self) -> None:
        self.taken, self.closed = 0, False
        self.allowed, self.took = threading.Semaphore(0), threading.Semaphore(0)

    def take(self) -> None:
        self.allowed.acquire()
        self.taken += 1
        self.took.release()

    def worker_pids(self) -> list[int]:
        return [os.getpid()]

    def close(self) -> None:
        self.closed = True


class Resident(InMemory):
    data = None


def test_background_loader_takes_one_batch_per_step_without_blocking() -> None:
    counted, resident = Counted(), Resident(torch.device("cpu"))
    beside = BackgroundLoader(resident, counted, counted.take)
    for _ in range(5):
        images, _ = beside.next_batch(lambda: None)
        assert images is resident.images
    counted.allowed.release(2)
    assert all(counted.took.acquire(timeout=5) for _ in range(2))
    counted.allowed.release(10)
    assert all(counted.took.acquire(timeout=5) for _ in range(3)), "regardless of host run-ahead"
    assert not counted.took.acquire(timeout=0.3)
    assert beside.worker_pids() == [os.getpid()]
    beside.close()
    assert counted.closed
    assert beside.pop_stats().samples == 5 * len(images)
    assert beside.pop_stats().samples == 0, "since the last call"


def test_background_batches_owed_before_a_round_are_not_counted() -> None:
    counted = Counted()
    beside = BackgroundLoader(Resident(torch.device("cpu")), counted, counted.take)
    for _ in range(5):
        images, _ = beside.next_batch(lambda: None)
    counted.allowed.release()
    assert counted.took.acquire(timeout=5)
    assert beside.pop_stats().samples <= len(images)
    counted.allowed.release(10)
    assert counted.took.acquire(timeout=5), "it was started before the round"
    assert not counted.took.acquire(timeout=0.3)
    beside.close()


def test_background_loader_error_is_raised_in_the_training_thread() -> None:
    counted, failed = Counted(), threading.Event()

    def take() -> None:
        failed.set()
        raise BenchError("there is no such file")

    beside = BackgroundLoader(Resident(torch.device("cpu")), counted, take)
    beside.next_batch(lambda: None)
    failed.wait(5)

    def train() -> None:
        for _ in range(1000):  # the thread may not have ended yet
            beside.next_batch(lambda: None)
            time.sleep(0.005)

    with pytest.raises(BenchError, match="no such file"):
        train()
    beside.close()


def test_replay_keeps_host_batches_and_closes_them_at_the_end(tmp_path: Path) -> None:
    settled, openers = open_loaders.config("torch", image_tree(tmp_path / "tree", images=8)), LoaderFactories()
    host = open_host_loader(settled, open_loaders.shard())
    openers.keep_for_replay(host, torch.device("cpu"), batches=3)
    host.close()
    first, second = (openers.for_role(REPLAY)(settled, open_loaders.shard()) for _ in range(2))
    assert isinstance(first, DeviceLoader)
    assert first is not second, "device batches belong to one round"
    batches = [first.next_batch(lambda: None) for _ in range(3)]
    first.close()
    again = [second.next_batch(lambda: None) for _ in range(3)]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(batches, again, strict=True)), "the batches are the same in every round"
    assert first.batch_bytes == batches[0][0].nbytes + batches[0][1].nbytes
    openers.close()
    with pytest.raises(ZeroDivisionError):
        second.next_batch(lambda: None)
