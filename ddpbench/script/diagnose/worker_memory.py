"""Measures the room for workers of a script's loader, and makes room for those of a trial."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace
from torch.utils.data import DataLoader

from ddpbench.analysis.worker_memory import memory_limit
from ddpbench.machine.host import MAX_MEMORY_FRACTION, free_memory_bytes, private_bytes, shared_memory_free_bytes
from ddpbench.record.diagnosis import SHM_DIR, WorkerMemory
from ddpbench.script.diagnose.own_loader import SteeredIterator, SteeredLoader

TRAINER_BATCHES = 2
"""Batches in shared memory that a script may hold: it trains on one, and receives the next."""

INHERITED_BATCHES = 1
"""Batches that forked workers keep in shared memory until they end: that which the script held when they were forked."""


def measure_worker_memory(loader: SteeredLoader, ranks: int) -> WorkerMemory:
    """The room for workers in place of those of ``loader``, as its batches and workers show it.

    On each of ``ranks``, which share the memory of a node.
    """
    own = loader.worker_pids()
    if private := [found for pid in own if (found := private_bytes(pid)) is not None]:
        loader.worker_bytes = sum(private) // len(private)
    batch_bytes = loader.repeated.batch_bytes
    free_bytes = shared_memory_free_bytes()
    if free_bytes is not None:
        trials = [pid for trial in loader.trials.values() for pid in trial.worker_pids()]
        given_bytes = (TRAINER_BATCHES + INHERITED_BATCHES) * batch_bytes
        room = free_bytes + ranks * (shared_bytes([os.getpid(), *own, *trials]) - given_bytes)
        free_bytes = max(0, min(room, free_memory_bytes()))
    return WorkerMemory(
        batch_bytes=ranks * batch_bytes,
        worker_bytes=ranks * loader.worker_bytes,
        shm_bytes=free_bytes,
        memory_bytes=int(MAX_MEMORY_FRACTION * free_memory_bytes()),
    )


def make_room(iterator: SteeredIterator, trial: DataLoader[Any], memory: WorkerMemory) -> bool:
    """End the workers of the script and of other trials, unless the shared memory holds those of ``trial`` beside them.

    They start again when their batches are wanted. Returns whether they have ended.
    """
    present = [(iterator.source.workers, iterator.source.prefetched)]
    present += [(other.num_workers, other.prefetched) for other in iterator.steered.trials.values()]
    batches = sum(prefetched + INHERITED_BATCHES for number, prefetched in present if number)
    if not (trial.num_workers and batches) or memory.shm_bytes is None:
        return False
    beside = replace(memory, shm_bytes=max(0, memory.shm_bytes - batches * memory.batch_bytes))
    if memory_limit(trial.num_workers, trial.prefetch_factor or 1, beside) != "shm":
        return False
    iterator.steered.close_trials()
    iterator.end_workers()
    return True


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
