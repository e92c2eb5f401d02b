"""Which memory is near: the NUMA nodes of cores and of GPUs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ddpbench.machine.gpu import Gpu
from ddpbench.machine.read_text import read_text

SYSFS_ROOT = Path("/sys")


def numa_nodes_of_cores(cores: Collection[int], sysfs_root: Path = SYSFS_ROOT) -> list[int]:
    """The NUMA nodes that ``cores`` lie on, in order; empty where the kernel does not tell."""
    nodes = {int(folder.name[len("node") :]): folder for folder in sysfs_root.glob("devices/system/node/node[0-9]*")}
    return sorted(node for node, folder in nodes.items() if _parse_cpulist(read_text(folder / "cpulist")) & set(cores))


def numa_nodes_of_gpu(uuid: str, sysfs_root: Path = SYSFS_ROOT) -> list[int]:
    """The one NUMA node that a GPU's bus hangs on; empty where that is not told, as in many virtual machines."""
    gpu, _ = Gpu.find(uuid)
    address = gpu.pci_address() if gpu else None
    node = read_text(sysfs_root / "bus/pci/devices" / address / "numa_node") if address else ""
    return [int(node)] if node.isdecimal() else []  # -1: none


def _parse_cpulist(cpulist: str) -> set[int]:
    """The cores of a list as the kernel writes it: ``0-3,8``."""
    spans = [span.split("-") for span in cpulist.split(",") if span]
    return {core for span in spans for core in range(int(span[0]), int(span[-1]) + 1)}
