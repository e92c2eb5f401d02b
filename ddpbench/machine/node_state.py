"""One node before anything runs: what the job may use there, and who else is there."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

import psutil

from ddpbench.machine import cgroup
from ddpbench.machine.cpu_usage import cores_busy_s
from ddpbench.machine.host import cpu_seconds, shared_memory_free_bytes, slurm_cores, usable_memory_bytes
from ddpbench.machine.numa import numa_nodes_of_cores, numa_nodes_of_gpu
from ddpbench.record.diagnosis import NodeState, RankNumaNodes
from ddpbench.record.environment import RankPlacement

SAMPLE_S = 0.5
"""CPU time is counted in hundredths of a second: over this long, to a fiftieth of a core."""


def collect_node_state(placements: Sequence[RankPlacement], sample_s: float = SAMPLE_S) -> NodeState:
    """The node of ``placements``, all of the job's that run on it, as one of them finds it in ``sample_s`` seconds.

    A rank that it does not see, as in a container beside its own, is left out; who else is there cannot be told then.
    Raises UsageError where SLURM's share is no number of cores.
    """
    cores = {place.rank: seen for place in placements if (seen := _affinity_of(place.pid))}
    together = set().union(*cores.values()) or os.sched_getaffinity(0)
    return NodeState(
        host=placements[0].host,
        affinity_cores=len(together),
        cpu_quota_cores=min(cgroup.cpu_quotas(), default=None),
        slurm_cores=slurm_cores(),
        numa=[_rank_numa_nodes(place, cores.get(place.rank, ())) for place in placements],
        shm_free_bytes=shared_memory_free_bytes(),
        usable_memory_bytes=usable_memory_bytes(),
        other_busy_cores=_other_busy_cores([place.pid for place in placements], together, sample_s)
        if len(cores) == len(placements)
        else None,
    )


def _affinity_of(pid: int) -> set[int]:
    """Those that a process may run on; empty where it cannot be seen."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()


def _rank_numa_nodes(place: RankPlacement, cores: Collection[int]) -> RankNumaNodes:
    gpu = numa_nodes_of_gpu(place.device_id) if place.device_id else []
    return RankNumaNodes(rank=place.rank, core_nodes=numa_nodes_of_cores(cores), gpu_nodes=gpu)


def _other_busy_cores(pids: Sequence[int], cores: Collection[int], sample_s: float) -> float | None:
    """How many of ``cores`` were busy with anything but the job; None where the kernel does not tell."""
    own = _process_trees(pids)
    began, busy, own_s = time.perf_counter(), cores_busy_s(cores), cpu_seconds(own)
    time.sleep(sample_s)
    wall_s = time.perf_counter() - began
    own_s, busy_now = cpu_seconds(own) - own_s, cores_busy_s(cores)
    return None if busy is None or busy_now is None else max(0.0, busy_now - busy - own_s) / wall_s


def _process_trees(pids: Sequence[int]) -> set[int]:
    """These processes and all that they started."""
    families = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            families |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return families
