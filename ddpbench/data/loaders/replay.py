"""The loader ``replay``: real batches that wait in host memory and are copied every step. What reading them costs is gone."""

from __future__ import annotations

import msgspec
import psutil
import torch
from torch import Tensor

from ddpbench.data.loader import HostBatch, HostLoader
from ddpbench.data.loaders.torch import open_torch
from ddpbench.data.shard import Shard
from ddpbench.machine.host import usable_memory_bytes
from ddpbench.machine.rank_env import from_env
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loaders import REPLAY

MAX_REPLAY_BATCHES, MIN_REPLAY_BATCHES = 16, 2

MAX_MEMORY_FRACTION = 0.2
"""Of what is free on the host, for all ranks there together."""


def open_replay(config: ResolvedConfig, shard: Shard) -> Replay:
    """Replays the loader ``torch``."""
    return make_replay(open_torch(config, shard), shard.device)


def make_replay(host: HostLoader, device: torch.device) -> Replay:
    """The next batches of ``host``, which is closed then."""
    try:
        return Replay(host, device)
    finally:
        host.close()


class Replay:
    """The next batches of a loader, in memory that a GPU copies from without the processor.

    There are ``batches`` of them, or as many as the host has the memory for, which come again and again.
    """

    max_prefetched = 0

    def __init__(self, host: HostLoader, device: torch.device, max_batches: int = MAX_REPLAY_BATCHES) -> None:
        self.device_transform = host.device_transform
        self._pinned = device.type == "cuda"
        first = host.next_batch()
        number = max(MIN_REPLAY_BATCHES, min(max_batches, max_batches_in_memory(first, self._pinned)))
        self._batches = [_copy_batch(first, self._pinned), *(_copy_batch(host.next_batch(), self._pinned) for _ in range(1, number))]
        self._next = 0
        self.data = msgspec.structs.replace(
            host.data, loader=REPLAY, description=f"{number} batches of {host.data.loader}, in host memory: {host.data.description}"
        )

    def next_batch(self) -> HostBatch:
        batch = self._batches[self._next % len(self._batches)]
        self._next += 1
        return batch

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        """Gives the memory back, which torch would keep page-locked."""
        self._batches.clear()
        if self._pinned:
            torch.cuda.synchronize()
            torch._C._host_emptyCache()  # torch 2.11 has no public way


def max_batches_in_memory(batch: HostBatch, pinned: bool, ranks: int | None = None, free_bytes: int | None = None) -> int:
    """How many such batches each of ``ranks`` on a host may keep of its ``free_bytes``; by themselves what is there now."""
    ranks = ranks or from_env().local_world_size
    free_bytes = free_bytes or min(usable_memory_bytes(), psutil.virtual_memory().available)
    return int(MAX_MEMORY_FRACTION * free_bytes / ranks / sum(_allocated_bytes(part, pinned) for part in (batch.samples, batch.labels)))


def _allocated_bytes(part: Tensor, pinned: bool) -> int:
    """Torch page-locks powers of two."""
    return 1 << (part.nbytes - 1).bit_length() if pinned else part.nbytes


def _copy_batch(batch: HostBatch, pinned: bool) -> HostBatch:
    """A copy of its own: a loader may use its memory again, and that of workers is shared memory, of which there is little."""
    samples, labels = (torch.empty_like(part, pin_memory=pinned).copy_(part) for part in (batch.samples, batch.labels))
    return HostBatch(samples, labels)
