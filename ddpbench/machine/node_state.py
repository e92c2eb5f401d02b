"""The state of a node before anything runs: cores, memory, NUMA, other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ddpbench.machine import cgroup
from ddpbench.machine.cpu import cores_busy_s
from ddpbench.machine.gpu import Gpu
from ddpbench.machine.host import cpu_seconds, shared_memory_free_bytes, slurm_cores, usable_memory_bytes
from ddpbench.machine.read_text import read_text
from ddpbench.record.diagnosis import NodeState, RankNumaNodes
from ddpbench.record.environment import RankPlacement

SAMPLE_S = 0.5
"""CPU time is counted in hundredths of a second: over this duration, the resolution is 1/50 of a core."""


def collect_node_state(placements: Sequence[RankPlacement], sample_s: float = SAMPLE_S) -> NodeState:
    """The state of the node of ``placements``, which must be all of the job's ranks on it. Takes ``sample_s`` seconds.

    Ranks whose processes are not visible, as in another container, are left out; ``other_busy_cores`` is then None.
    Raises UsageError if SLURM's allocation is not a number of cores.
    """
    cores = {placement.rank: affinity for placement in placements if (affinity := _affinity_of(placement.pid))}
    job_cores = set().union(*cores.values()) or os.sched_getaffinity(0)
    return NodeState(
        host=placements[0].host,
        affinity_cores=len(job_cores),
        cpu_quota_cores=min(cgroup.cpu_quotas(), default=None),
        slurm_cores=slurm_cores(),
        numa=[_rank_numa_nodes(placement, cores.get(placement.rank, ())) for placement in placements],
        shm_free_bytes=shared_memory_free_bytes(),
        usable_memory_bytes=usable_memory_bytes(),
        other_busy_cores=_other_busy_cores([placement.pid for placement in placements], job_cores, sample_s)
        if len(cores) == len(placements)
        else None,
    )


def _affinity_of(pid: int) -> set[int]:
    """Cores that a process may run on; empty if it is not visible."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()


def _rank_numa_nodes(place: RankPlacement, cores: Collection[int]) -> RankNumaNodes:
    gpu = numa_nodes_of_gpu(place.device_id) if place.device_id else []
    return RankNumaNodes(rank=place.rank, core_nodes=numa_nodes_of_cores(cores), gpu_nodes=gpu)


def _other_busy_cores(pids: Sequence[int], cores: Collection[int], sample_s: float) -> float | None:
    """How many of ``cores`` were busy with processes outside the job; None if unknown."""
    job_pids = _process_trees(pids)
    began, busy, job_s = time.perf_counter(), cores_busy_s(cores), cpu_seconds(job_pids)
    time.sleep(sample_s)
    wall_s = time.perf_counter() - began
    job_s, busy_now = cpu_seconds(job_pids) - job_s, cores_busy_s(cores)
    return None if busy is None or busy_now is None else max(0.0, busy_now - busy - job_s) / wall_s


def _process_trees(pids: Sequence[int]) -> set[int]:
    """These processes and all their descendants."""
    tree = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            tree |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return tree


SYSFS_ROOT = Path("/sys")


def numa_nodes_of_cores(cores: Collection[int], sysfs_root: Path = SYSFS_ROOT) -> list[int]:
    """Sorted NUMA nodes of ``cores``; empty if unknown."""
    nodes = {int(folder.name[len("node") :]): folder for folder in sysfs_root.glob("devices/system/node/node[0-9]*")}
    return sorted(node for node, folder in nodes.items() if _parse_cpulist(read_text(folder / "cpulist")) & set(cores))


def numa_nodes_of_gpu(uuid: str, sysfs_root: Path = SYSFS_ROOT) -> list[int]:
    """A list with the NUMA node of a GPU's PCI bus; empty if unknown, as in many virtual machines."""
    gpu, _ = Gpu.find(uuid)
    address = gpu.pci_address() if gpu else None
    node = read_text(sysfs_root / "bus/pci/devices" / address / "numa_node") if address else ""
    return [int(node)] if node.isdecimal() else []  # -1: none


def _parse_cpulist(cpulist: str) -> set[int]:
    """The cores of a kernel cpulist such as ``0-3,8``."""
    ranges = [bounds.split("-") for bounds in cpulist.split(",") if bounds]
    return {core for bounds in ranges for core in range(int(bounds[0]), int(bounds[-1]) + 1)}
