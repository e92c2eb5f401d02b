"""Published experiments with --quick on two real ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import TORCHRUN

from ddpbench.record.io import load

PLAIN = [sys.executable, "-m", "ddpbench"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["disc-mlp-cpu-vs-gpu", "imagenet-resnet-slurm-vs-container"])
def test_quick_reproduction_runs_on_two_ranks(launch: Callable[..., Any], results: Path, name: str) -> None:
    done = launch([*TORCHRUN, "reproduce", name, "--quick", "--device", "cpu", "-o", str(results)], timeout=280)
    assert done.returncode == 0, done.stderr
    (path,) = (results / "cpu").glob("*.json")
    job = load(path)
    assert job.kind == f"reproduce {name}"
    assert {(record.status, record.world_size, len(record.rounds)) for record in job.records} == {("ok", 2, 2)}
    assert all(timed.params_in_sync for record in job.records for timed in record.rounds)
    assert "published  " in done.stdout
    assert "quick: " in done.stdout
    assert launch([*PLAIN, "report", str(path)]).stdout == done.stdout


@pytest.mark.slow
def test_crossover_of_thread_counts_is_fitted_or_reported_missing(launch: Callable[..., Any], results: Path) -> None:
    words = ["crossover", "disc-mlp", "--device", "cpu", "--threads", "1,2", "--layers", "2-4", "--rounds", "2"]
    done = launch([*PLAIN, *words, "-o", str(results)])
    assert done.returncode == 0, done.stderr
    (path,) = (results / "cpu").glob("crossover-disc-mlp-*.json")
    job = load(path)
    assert [record.role.side for record in job.records] == ["CPU, 1 thread", "CPU, 2 threads"] * 3
    assert [record.config.threads for record in job.records] == [1, 2] * 3
    assert [record.num_parameters for record in job.records[::2]] == [22, 70, 230]
    assert all(timed.traces[0].steps == 1000 for record in job.records for timed in record.rounds)
    assert "faster than CPU with" in done.stdout
    assert "published" not in done.stdout, "the published crossover is that of a CPU and a GPU"
    for record in job.records:
        assert all(timed.traces[0].numerics.accuracy is not None for timed in record.rounds), "accuracy is measured at each depth"
