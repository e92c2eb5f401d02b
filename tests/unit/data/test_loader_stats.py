"""Loader stats: every stage of delivered batches, once, in the trace of the round."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_datasets
import torch
import training
from open_loaders import CPU, config, memory_config, opened, shard, take
from torch import nn

from ddpbench.data.device_copy import DeviceLoader
from ddpbench.data.loader import HostBatch, WorkerTiming
from ddpbench.data.loaders.open import open_host_loader, open_loader
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.record import DatasetInfo
from ddpbench.training.session import Session
from ddpbench.training.warmup import warm_up


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_datasets.image_tree(tmp_path_factory.mktemp("tree"))


@pytest.mark.parametrize("loader", ["torch", "torch-uint8"])
@pytest.mark.parametrize("workers", [0, 2])
def test_all_stages_of_delivered_batches_are_reported_once(loader: str, workers: int, tree: Path) -> None:
    with opened(config(loader, tree, workers=workers, batch_size=4)) as live:
        take(live, 2)
        assert live.pop_stats()
        take(live, 5)
        loading = live.pop_stats()
        assert loading
        assert (loading.samples, len(loading.batch_ms), loading.skipped_files) == (20, 5, [])
        assert list(loading.cpu_s) == list(loading.wall_s) == ["read", "decode", "augment", "collate"]
        assert all(seconds > 0 for seconds in (*loading.cpu_s.values(), *loading.wall_s.values()))
        assert sum(loading.wall_s.values()) <= 1e-3 * sum(loading.batch_ms), "stages are parts of the batches"
        assert loading.runqueue_wait_s is None or 0 <= loading.runqueue_wait_s <= sum(loading.wall_s.values()), (
            "a wait for a core is part of it too"
        )
        assert live.pop_stats() is None


def test_worker_timing_uses_the_clock_of_the_trainer(tree: Path) -> None:
    from time import perf_counter

    before = perf_counter()
    host = open_host_loader(config("torch", tree, workers=2), shard())
    sheets = [host.next_batch().worker_timing for _ in range(4)]
    host.close()
    assert all(sheet is not None and before < sheet.start_s < sheet.end_s < perf_counter() for sheet in sheets)


def test_in_memory_datasets_report_augment_and_collate(tmp_path: Path) -> None:
    with opened(memory_config("torch", "cifar10", sample_datasets.cifar10(tmp_path)), "cifar10", classes=10) as live:
        take(live, 2)
        loading = live.pop_stats()
    assert loading
    assert list(loading.cpu_s) == ["augment", "collate"]


@pytest.mark.parametrize("loader", ["synthetic", "tensor"])
def test_device_resident_batches_have_no_stats(loader: str) -> None:
    with opened(memory_config(loader, "mnist"), "mnist", classes=10) as live:
        take(live, 2)
        assert live.pop_stats() is None


class Silent:
    """A host loader with worker timing for every second batch."""

    data, max_prefetched = DatasetInfo(loader="silent"), 0

    def __init__(self) -> None:
        self._batches = 0

    def device_transform(self, samples: torch.Tensor) -> torch.Tensor:
        return samples

    def next_batch(self) -> HostBatch:
        self._batches += 1
        return HostBatch(torch.zeros(3, 1), torch.zeros(3), WorkerTiming(0.0, 1.0) if self._batches % 2 else None)

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def test_batches_without_worker_timing_are_not_counted() -> None:
    delivered = DeviceLoader(Silent(), CPU)
    for _ in range(4):
        delivered.next_batch(lambda: None)
    loading = delivered.pop_stats()
    assert loading
    assert (loading.samples, loading.cpu_s) == (6, {})


@pytest.mark.parametrize("drain", [True, False])
def test_round_reports_stats_of_its_own_batches(drain: bool, tree: Path) -> None:
    world = training.world_of_one()
    settled = training.config(loader="torch", data_dir=str(tree), workers=1, prefetch=1)
    loader = open_loader(settled, shard(classes=training.CLASSES))
    live = Session(settled, training.tiny_net(), nn.CrossEntropyLoss(), loader, world, ProgressMarker(60.0))
    try:
        warm_up(live)
        trace = live.run_round(3, drain)
    finally:
        live.close()
    assert trace.loader_stats
    assert trace.loader_stats.samples == trace.samples == 3 * training.BATCH
    assert len(trace.loader_stats.batch_ms) == 3
    assert trace.cpu_usage is None or trace.cpu_usage.num_cores >= 1
    assert trace.thread_cpu_s
    assert 0 < trace.thread_cpu_s <= 1.01 * trace.wall_s
