"""``--fast`` on GPUs: under DDP with NCCL, in one job with the same training without it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launches import only_job
from open_loaders import NO_DALI

GPUS = torch.cuda.device_count()
ON_GPUS = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={GPUS}", "-m", "ddpbench"]
SMALL = ["--amp", "--image-size", "64", "-b", "8", "--steps", "12", "--rounds", "2"]


@pytest.mark.cuda
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "flags", [[], ["--no-broadcast-buffers"], ["--static-graph"], ["--comm-hook", "fp16"], ["--engine", "no-sync"]], ids=" ".join
)
def test_fast_run_trains_like_a_plain_one(flags: list[str], launch: Callable[..., Any], tmp_path: Path) -> None:
    done = launch([*ON_GPUS, "resnet18", *SMALL, *flags, "--fast", "--no-fast", "-o", str(tmp_path)], timeout=180)
    assert done.returncode == 0, done.stderr
    fast, plain = sorted(only_job(tmp_path).records, key=lambda record: not record.config.fast)
    assert (fast.config.fused_kernels, fast.config.cuda_graph) == (True, True)
    assert (plain.config.fused_kernels, plain.config.cuda_graph) == (False, False)
    assert fast.peak_throughput
    assert fast.peak_throughput.matmul_tflops["float16"] > 0
    for ours, theirs in zip(fast.rounds, plain.rounds, strict=True):
        assert ours.params_in_sync or "no-sync" in flags
        for trace, other in zip(ours.traces, theirs.traces, strict=True):
            assert trace.numerics.nonfinite_step is None
            assert trace.numerics.last_loss == pytest.approx(other.numerics.last_loss, rel=0.1, abs=0.1)


@pytest.mark.cuda
@pytest.mark.timeout(200)
@pytest.mark.parametrize("workload", ["vgg16-cifar10", "mnist-cnn", "disc-mlp-5"])
def test_small_workloads_train_alike_with_combined_kernels(workload: str, launch: Callable[..., Any], tmp_path: Path) -> None:
    """From scratch: a warm-up of other rounds lasts as long as it needs, so that two arms measure other parts of the training."""
    words = ["--amp", "--steps", "12", "--rounds", "1", "--fresh", "--no-validate", "--loader", "synthetic", "-o", str(tmp_path)]
    done = launch([*ON_GPUS, workload, *words, "--fast", "--combo-kernels", "--no-combo-kernels"], timeout=180)
    assert done.returncode == 0, done.stderr
    combined, plain = only_job(tmp_path).records
    assert (combined.config.combo_kernels, plain.config.combo_kernels) == (True, False)
    ours, theirs = (record.rounds[0].traces[0].numerics for record in (combined, plain))
    assert (ours.nonfinite_step, theirs.nonfinite_step) == (None, None)
    assert ours.mean_loss == pytest.approx(theirs.mean_loss, rel=0.05, abs=0.01)


@pytest.mark.cuda
@NO_DALI
@pytest.mark.timeout(320)
def test_diagnosis_of_compute_bound_training_predicts_and_tries_fast(launch: Callable[..., Any], tmp_path: Path) -> None:
    words = ["diagnose", "resnet18", "--amp", "--image-size", "128", "-b", "512", "--loader", "dali-gpu", "-o", str(tmp_path)]
    done = launch([*ON_GPUS, *words], timeout=300)
    assert done.returncode == 0, done.stderr
    job = only_job(tmp_path)
    if job.records[0].verdict is None or job.records[0].verdict.kind != "compute-bound":
        pytest.skip("the loader is slower than this GPU")
    assert job.diagnosis
    (prediction,) = (each for each in job.diagnosis.predictions if each.scenario.fast)
    assert prediction.gain
    assert prediction.gain > 1.05
    (tried,) = (record for record in job.records if record.role.scenario and record.role.scenario.fast)
    assert (tried.config.fused_kernels, tried.config.cuda_graph, tried.status) == (True, True, "ok")


@pytest.mark.cuda
@pytest.mark.timeout(200)
def test_second_launch_finds_the_fused_kernels_in_the_cache(
    launch: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    found = []
    for name in ("first", "second"):
        done = launch([*ON_GPUS, "resnet18", *SMALL, "--fast", "-o", str(tmp_path / name)], timeout=90)
        assert done.returncode == 0, done.stderr
        found.append(only_job(tmp_path / name).records[0].warmup)
    cold, warm = found
    assert cold is not None
    assert warm is not None
    assert (cold.compile_cache, warm.compile_cache) == ("cold", "warm")
    assert cold.kernel_compile_s > warm.kernel_compile_s == 0.0
