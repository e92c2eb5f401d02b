"""Measures the room for workers beside those that a script has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from ddpbench.machine.host import MAX_MEMORY_FRACTION, free_memory_bytes, private_bytes, shared_memory_free_bytes
from ddpbench.record.diagnosis import SHM_DIR, WorkerMemory
from ddpbench.script.diagnose.own_loader import SteeredLoader


def measure_worker_memory(loader: SteeredLoader, ranks: int) -> WorkerMemory:
    """As the batches and workers of ``loader`` show it, on each of ``ranks``, which share the memory of a node.

    The own workers may fill their queues at any time, while the script trains on one more batch: so much is set aside.
    """
    pids = loader.worker_pids()
    private = [found for pid in pids if (found := private_bytes(pid)) is not None]
    batch_bytes = loader.repeated.batch_bytes
    prefetched = loader.iterator.source.prefetched if loader.iterator is not None else 0
    free_bytes = shared_memory_free_bytes()
    if free_bytes is not None:
        room = free_bytes + ranks * (shared_bytes([os.getpid(), *pids]) - (prefetched + 1) * batch_bytes)
        free_bytes = max(0, min(room, free_memory_bytes()))
    return WorkerMemory(
        batch_bytes=ranks * batch_bytes,
        worker_bytes=ranks * sum(private) // max(1, len(private)),
        shm_bytes=free_bytes,
        memory_bytes=int(MAX_MEMORY_FRACTION * free_memory_bytes()),
    )


def shared_bytes(pids: Iterable[int]) -> int:
    """Bytes in ``SHM_DIR`` of files that the processes have open. DataLoader deletes their names at once."""
    found: dict[int, int] = {}
    with suppress(OSError):
        device = os.stat(SHM_DIR).st_dev
        for folder in (f"/proc/{pid}/fd" for pid in pids):
            with suppress(OSError):  # a worker that has just ended
                for descriptor in os.listdir(folder):
                    with suppress(OSError):
                        status = os.stat(f"{folder}/{descriptor}")
                        if status.st_dev == device:
                            found[status.st_ino] = 512 * status.st_blocks
    return sum(found.values())
