"""The loader ``replay``: real batches that wait in host memory and are copied every step. What reading them costs is gone."""

from __future__ import annotations

import msgspec
import psutil
import torch
from torch import Tensor

from ddpbench.data.loader import HostBatch, HostLoader
from ddpbench.data.loaders.torch import open_stock
from ddpbench.data.shard import Shard
from ddpbench.machine.host import usable_memory_bytes
from ddpbench.machine.rank_env import take_seat
from ddpbench.record.loaders import REPLAY
from ddpbench.record.resolved import Settled

MOST_BATCHES, LEAST_BATCHES = 16, 2

MOST_OF_MEMORY = 0.2
"""Of what is free on the host, for all ranks there together."""


def open_replay(config: Settled, shard: Shard) -> Replay:
    """Replays the loader ``torch``."""
    return replayed(open_stock(config, shard), shard.device)


def replayed(host: HostLoader, device: torch.device) -> Replay:
    """The next batches of ``host``, which is closed then."""
    try:
        return Replay(host, device)
    finally:
        host.close()


class Replay:
    """The next batches of a loader, in memory that a GPU copies from without the processor.

    There are ``batches`` of them, or as many as the host has the memory for, which come again and again.
    """

    in_flight = 0

    def __init__(self, host: HostLoader, device: torch.device, batches: int = MOST_BATCHES) -> None:
        self.finish = host.finish
        self._pinned = device.type == "cuda"
        first = host.next_batch()
        number = max(LEAST_BATCHES, min(batches, room_for(first, self._pinned)))
        self._batches = [_kept(first, self._pinned), *(_kept(host.next_batch(), self._pinned) for _ in range(1, number))]
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


def room_for(batch: HostBatch, pinned: bool, ranks: int | None = None, free_bytes: int | None = None) -> int:
    """How many such batches each of ``ranks`` on a host may keep of its ``free_bytes``; by themselves what is there now."""
    ranks = ranks or take_seat().local_world_size
    free_bytes = free_bytes or min(usable_memory_bytes(), psutil.virtual_memory().available)
    return int(MOST_OF_MEMORY * free_bytes / ranks / sum(_held_bytes(part, pinned) for part in (batch.samples, batch.labels)))


def _held_bytes(part: Tensor, pinned: bool) -> int:
    """Torch page-locks powers of two."""
    return 1 << (part.nbytes - 1).bit_length() if pinned else part.nbytes


def _kept(batch: HostBatch, pinned: bool) -> HostBatch:
    """A copy of its own: a loader may use its memory again, and that of workers is shared memory, of which there is little."""
    samples, labels = (torch.empty_like(part, pin_memory=pinned).copy_(part) for part in (batch.samples, batch.labels))
    return HostBatch(samples, labels)
