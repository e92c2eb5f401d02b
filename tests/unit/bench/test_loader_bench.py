"""Loader benchmarks: counted batches, CPU time, and comparisons of loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from launches import SMALL, SUPPORT_ENV, TORCHRUN, only_job
from training import InMemory, world_of_one

from ddpbench.bench import loader_bench
from ddpbench.bench.loader_bench import benchmark_loader
from ddpbench.bench.resolve import resolve_config
from ddpbench.record.config import Config, ResolvedConfig

pytestmark = pytest.mark.timeout(110)


def config(**asked: Any) -> ResolvedConfig:
    """Resolved config of a training on generated CIFAR-10."""
    usual = {"batch_size": 16, "image_size": 32, "channels_last": False, "workers": 0, "loader": "torch"}
    return resolve_config(Config(workload="vgg16-cifar10", **{**usual, **asked}), False, 1)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Bursts]]:
    """Replace opened loaders by ``Bursts``; yields the opened ones."""
    loaders: list[Bursts] = []

    def open_bursts(*_: object) -> Bursts:
        loaders.append(Bursts())
        return loaders[-1]

    monkeypatch.setattr(loader_bench, "open_loader", open_bursts)
    yield loaders
    assert all(loader.closed for loader in loaders)


class Bursts(InMemory):
    """A loader with three workers: bursts of three batches; the first burst takes longer."""

    max_prefetched = 6

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.given, self.closed = 0, False
        self.asked_about: list[int] = []

    def next_batch(self, on_host_ready: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.given % 3 == 0:
            time.sleep(0.03 if self.given else 0.3)
        self.given += 1
        return super().next_batch(on_host_ready)

    def pop_stats(self) -> None:
        self.asked_about.append(self.given)

    def close(self) -> None:
        self.closed = True


def test_first_window_is_dropped_and_whole_bursts_are_counted(opened: list[Bursts]) -> None:
    benchmark = benchmark_loader(config(workers=3), world_of_one(), window_s=0.1)
    (loader,) = opened
    batches = len(benchmark.intervals_ms)
    assert loader.asked_about == [loader.max_prefetched, loader.given], "stats of the dropped window are discarded"
    assert loader.given == loader.max_prefetched + batches
    assert batches % 3 == 0
    assert benchmark.samples == 16 * batches
    assert benchmark.first_batch_s >= 0.3 > benchmark.elapsed_s / batches, "the first batch is not part of the rate"
    assert benchmark.elapsed_s == pytest.approx(sum(benchmark.intervals_ms) / 1e3, rel=0.01)


def test_one_burst_does_not_decide_where_there_is_time_for_two(opened: list[Bursts], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_bench, "MAX_WINDOWS", 10_000)
    benchmark = benchmark_loader(config(workers=3), world_of_one(), window_s=0.001)
    assert len(benchmark.intervals_ms) == 6


def test_slow_loader_benchmark_ends_after_the_maximum_windows(opened: list[Bursts], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_bench, "MAX_WINDOWS", 0)
    benchmark = benchmark_loader(config(workers=3), world_of_one(), window_s=0.1)
    assert opened[0].given == 3 + len(benchmark.intervals_ms)
    assert len(benchmark.intervals_ms) == 1


def test_loader_without_workers_is_charged_to_the_main_process() -> None:
    benchmark = benchmark_loader(config(), world_of_one(), window_s=0.2)
    assert benchmark.loader_cpu_s < benchmark.main_process_cpu_s
    assert benchmark.workers_rss_bytes is None
    assert benchmark.loader_stats is not None
    assert benchmark.loader_stats.samples == benchmark.samples


def test_worker_cpu_time_and_memory_are_measured() -> None:
    benchmark = benchmark_loader(config(workers=1), world_of_one(), window_s=0.5)
    assert benchmark.loader_cpu_s > 0
    assert benchmark.workers_rss_bytes is not None
    assert benchmark.samples_per_s > 0


@pytest.mark.slow
def test_compared_loaders_are_benchmarked(launch: Callable[..., Any], results: Path) -> None:
    words = ["misbehaving:fine", *SMALL, "--rounds", "1", "-j", "1", "--loader", "synthetic,torch,tensor"]
    done = launch([*TORCHRUN, *words, "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    assert "ddpbench: benchmarking loader tensor" in done.stderr
    assert "benchmarking loader synthetic" not in done.stderr
    synthetic, *others = only_job(results).records
    assert synthetic.loader_benchmarks == []
    for record in others:
        assert [benchmark.rank for benchmark in record.loader_benchmarks] == [0, 1]
        assert all(benchmark.samples_per_s > 0 for benchmark in record.loader_benchmarks)
