"""Replay of the same real batches from host memory."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import sample_datasets
import torch
from open_loaders import CPU, NO_DALI, config, opened, shard, take

from ddpbench.data.device_copy import DeviceLoader
from ddpbench.data.loader import HostBatch
from ddpbench.data.loaders import replay
from ddpbench.data.loaders.open import open_host_loader
from ddpbench.data.loaders.replay import MAX_REPLAY_BATCHES as BATCHES
from ddpbench.data.loaders.replay import MIN_REPLAY_BATCHES, make_replay, max_batches_in_memory
from ddpbench.record.errors import UsageError


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_datasets.image_tree(tmp_path_factory.mktemp("tree"), classes=4, images=12)


def test_replay_gives_the_batches_of_torch(tree: Path) -> None:
    with opened(config("torch", tree)) as live:
        images, labels = take(live, BATCHES)
    with opened(config("replay", tree)) as live:
        assert live.worker_pids() == []
        assert (live.max_prefetched, live.pop_stats(), live.data.num_samples, live.data.loader) == (0, None, 48, "replay")
        assert (live.data.num_batches, live.data.replayed_loader, live.data.num_samples) == (16, "torch", 48)
        for _ in range(2):
            again, same = take(live, BATCHES)
            assert torch.equal(images, again)
            assert torch.equal(labels, same)


@pytest.mark.parametrize("loader", ["torch-uint8", pytest.param("dali-cpu", marks=NO_DALI)])
def test_other_loaders_are_replayed_as_raw_bytes(loader: str, tree: Path) -> None:
    settled = config(loader, tree)
    with opened(settled) as live:
        images, labels = take(live, BATCHES)
    host = open_host_loader(settled, shard())
    pids = host.worker_pids()
    live = DeviceLoader(make_replay(host, CPU), CPU)
    assert not any(map(psutil.pid_exists, pids))
    assert live.worker_pids() == []
    take(live, BATCHES)
    again, same = take(live, BATCHES)
    assert torch.equal(images, again)
    assert torch.equal(labels, same)
    live.close()


def test_device_loader_cannot_be_replayed() -> None:
    with pytest.raises(UsageError, match="prepares its batches on the device"):
        open_host_loader(config("synthetic"), shard())


def test_replayed_batches_are_limited_by_host_memory(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = HostBatch(torch.zeros(2**20 + 1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8))
    assert max_batches_in_memory(batch, pinned=False, ranks=2, free_bytes=100 * 2**20) == 9
    assert max_batches_in_memory(batch, pinned=True, ranks=2, free_bytes=100 * 2**20) == 4, "torch rounds pinned allocations up"
    monkeypatch.setattr(replay, "max_batches_in_memory", lambda batch, pinned: 1)
    with opened(config("replay", tree)) as live:
        assert live.data.num_batches == MIN_REPLAY_BATCHES


@pytest.mark.cuda
def test_replayed_batches_are_in_pinned_memory(tree: Path) -> None:
    device = torch.device("cuda", 0)
    for pin_memory in (True, False):
        host = open_host_loader(config("replay", tree, pin_memory=pin_memory), shard(device=device))
        assert all(part.is_pinned() for part in (host.next_batch().samples, host.next_batch().labels))
