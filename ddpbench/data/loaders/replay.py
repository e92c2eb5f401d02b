"""The loader ``replay``: real batches kept in host memory.

They are copied to the device every step, without the cost of reading.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from ddpbench.data.loader import HostBatch, HostLoader
from ddpbench.data.shard import Shard
from ddpbench.machine.host import free_memory_bytes
from ddpbench.machine.rank_env import from_env
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loaders import REPLAY

MAX_REPLAY_BATCHES, MIN_REPLAY_BATCHES = 16, 2

MAX_MEMORY_FRACTION = 0.2
"""Fraction of the host's free memory, for all its ranks together."""


def open_replay(config: ResolvedConfig, shard: Shard) -> Replay:
    """Replay the loader ``torch``."""
    from ddpbench.data.loaders.torch import open_torch  # imports torchvision, which a diagnosis with another loader does not need

    return make_replay(open_torch(config, shard), shard.device)


def make_replay(host: HostLoader, device: torch.device) -> Replay:
    """Replay the next batches of ``host``, which is then closed."""
    try:
        return Replay(host, device)
    finally:
        host.close()


class Replay:
    """Repeats the next batches of a loader.

    A GPU copies them from memory without the CPU. Keeps ``max_batches`` batches, or as many as fit in host memory.
    """

    max_prefetched = 0

    def __init__(self, host: HostLoader, device: torch.device, max_batches: int = MAX_REPLAY_BATCHES) -> None:
        self.device_transform = host.device_transform
        self._pinned = device.type == "cuda"
        first = host.next_batch()
        number = max(MIN_REPLAY_BATCHES, min(max_batches, max_batches_in_memory(first, self._pinned)))
        self._batches = [_copy_batch(first, self._pinned), *(_copy_batch(host.next_batch(), self._pinned) for _ in range(1, number))]
        self._next = 0
        self.data = msgspec.structs.replace(host.data, loader=REPLAY, num_batches=number, replayed_loader=host.data.loader)

    def next_batch(self) -> HostBatch:
        batch = self._batches[self._next % len(self._batches)]
        self._next += 1
        return batch

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        """Free the memory, which torch would keep page-locked."""
        self._batches.clear()
        if self._pinned:
            torch.cuda.synchronize()
            torch._C._host_emptyCache()  # no public API in torch 2.11


def max_batches_in_memory(batch: HostBatch, pinned: bool, ranks: int | None = None, free_bytes: int | None = None) -> int:
    """How many such batches each of ``ranks`` may keep.

    ``ranks`` and ``free_bytes`` are per host; by default those of this host now.
    """
    ranks = ranks or from_env().local_world_size
    free_bytes = free_bytes or free_memory_bytes()
    return int(MAX_MEMORY_FRACTION * free_bytes / ranks / sum(_allocated_bytes(part, pinned) for part in (batch.samples, batch.labels)))


def _allocated_bytes(part: Tensor, pinned: bool) -> int:
    """Bytes that torch allocates: page-locked memory is rounded up to a power of two."""
    return 1 << (part.nbytes - 1).bit_length() if pinned else part.nbytes


def _copy_batch(batch: HostBatch, pinned: bool) -> HostBatch:
    """An independent copy of ``batch``.

    A loader may reuse its memory, and workers use shared memory, which is scarce.
    """
    samples, labels = (torch.empty_like(part, pin_memory=pinned).copy_(part) for part in (batch.samples, batch.labels))
    return HostBatch(samples, labels)
