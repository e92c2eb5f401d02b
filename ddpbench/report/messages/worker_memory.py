"""Sentences about workers that do not fit in memory."""

from __future__ import annotations

from math import ceil

from ddpbench.record.diagnosis import SHM_DIR, WorkerMemory
from ddpbench.record.remedy import MemoryLimit
from ddpbench.record.text import format_3sig, pluralize

RAISE_SHM = "docker run --shm-size={gib}g, or --ipc=host, raises it"


def memory_limit_text(limit: MemoryLimit, workers: int, prefetch: int, memory: WorkerMemory) -> str:
    """Why ``workers`` that prefetch so many batches each do not fit, and how to make room."""
    batches_bytes = workers * prefetch * memory.batch_bytes
    batches = f"{pluralize(workers, 'worker')} with prefetch_factor={prefetch} hold up to {pluralize(workers * prefetch, 'batch', 'es')}"
    if limit == "shm":
        room = f"{SHM_DIR} has room for {_gib(memory.shm_bytes or 0)}"
        return f"{batches}, {_gib(batches_bytes)}; {room}; {RAISE_SHM.format(gib=shm_gib(workers, prefetch, memory))}"
    needed = batches_bytes + workers * memory.worker_bytes
    return f"{batches} and need {_gib(needed)} of memory; half of what is free is {_gib(memory.memory_bytes)}"


def room_text(limit: MemoryLimit, workers: int, wanted: int, prefetch: int, memory: WorkerMemory) -> str:
    """What keeps a trial to fewer workers than ``wanted``, and how to make room."""
    if limit == "memory":
        return f"the free memory has room for {workers}"
    return f"{SHM_DIR} has room for {workers}; {RAISE_SHM.format(gib=shm_gib(wanted, prefetch, memory))}"


def shm_gib(workers: int, prefetch: int, memory: WorkerMemory) -> int:
    """Whole GiB that hold the batches of ``workers`` twice."""
    return max(1, ceil(2 * (workers * prefetch + 1) * memory.batch_bytes / 2**30))


def _gib(num_bytes: int) -> str:
    return f"{format_3sig(num_bytes / 2**30)} GiB"
