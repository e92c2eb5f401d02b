"""How many workers of a DataLoader fit in memory.

Each worker has as many batches in flight as it prefetches: they wait in shared memory, or are being loaded into it.
"""

from __future__ import annotations

from typing import NamedTuple

from ddpbench.record.diagnosis import WorkerMemory
from ddpbench.record.remedy import MemoryLimit


class WorkersThatFit(NamedTuple):
    """Workers per rank, and the batches that each may prefetch."""

    workers: int
    prefetch: int


def memory_limit(workers: int, prefetch: int, memory: WorkerMemory) -> MemoryLimit | None:
    """What ``workers`` that prefetch so many batches each do not fit in; None if they fit."""
    batches_bytes = workers * prefetch * memory.batch_bytes
    if memory.shm_bytes is not None and batches_bytes > memory.shm_bytes:
        return "shm"
    return "memory" if batches_bytes + workers * memory.worker_bytes > memory.memory_bytes else None


def workers_that_fit(workers: int, prefetch: int, memory: WorkerMemory) -> WorkersThatFit | None:
    """``workers`` if they fit in memory, else as many as do if each prefetches a single batch; None if not even one does.

    A batch that is prefetched hides variations of a loader, a worker raises its throughput.
    """
    if memory_limit(workers, prefetch, memory) is None:
        return WorkersThatFit(workers, prefetch)
    fitting = (number for number in range(workers, 0, -1) if memory_limit(number, 1, memory) is None)
    return next((WorkersThatFit(number, 1) for number in fitting), None)
