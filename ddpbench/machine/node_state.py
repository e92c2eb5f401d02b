"""One node before anything runs: what the job may use there, and who else is there."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

import psutil

from ddpbench.machine import cgroup
from ddpbench.machine.cpu_usage import busy_s
from ddpbench.machine.host import cpu_seconds, shared_memory_free_bytes, slurm_cores, usable_memory_bytes
from ddpbench.machine.numa import nodes_of_cores, nodes_of_gpu
from ddpbench.record.diagnosis import Numa, Surroundings
from ddpbench.record.environment import RankPlace

SAMPLE_S = 0.5
"""CPU time is counted in hundredths of a second: over this long, to a fiftieth of a core."""


def surroundings(ranks: Sequence[RankPlace], sample_s: float = SAMPLE_S) -> Surroundings:
    """The node of ``ranks``, all of the job's that run on it, as one of them finds it in ``sample_s`` seconds.

    A rank that it does not see, as in a container beside its own, is left out; who else is there cannot be told then.
    Raises UsageError where SLURM's share is no number of cores.
    """
    cores = {place.rank: seen for place in ranks if (seen := _cores_of(place.pid))}
    together = set().union(*cores.values()) or os.sched_getaffinity(0)
    return Surroundings(
        host=ranks[0].host,
        affinity=len(together),
        quota=min(cgroup.cpu_quotas(), default=None),
        slurm=slurm_cores(),
        numa=[_numa(place, cores.get(place.rank, ())) for place in ranks],
        shm_free_bytes=shared_memory_free_bytes(),
        memory_bytes=usable_memory_bytes(),
        others_cores=_others_cores([place.pid for place in ranks], together, sample_s) if len(cores) == len(ranks) else None,
    )


def _cores_of(pid: int) -> set[int]:
    """Those that a process may run on; empty where it cannot be seen."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()


def _numa(place: RankPlace, cores: Collection[int]) -> Numa:
    gpu = nodes_of_gpu(place.device_id) if place.device_id else []
    return Numa(rank=place.rank, cores=nodes_of_cores(cores), gpu=gpu)


def _others_cores(ranks: Sequence[int], cores: Collection[int], sample_s: float) -> float | None:
    """How many of ``cores`` were busy with anything but the job; None where the kernel does not tell."""
    own = _families(ranks)
    began, busy, own_s = time.perf_counter(), busy_s(cores), cpu_seconds(own)
    time.sleep(sample_s)
    wall_s = time.perf_counter() - began
    own_s, busy_now = cpu_seconds(own) - own_s, busy_s(cores)
    return None if busy is None or busy_now is None else max(0.0, busy_now - busy - own_s) / wall_s


def _families(pids: Sequence[int]) -> set[int]:
    """These processes and all that they started."""
    families = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            families |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return families
