"""The host: usable cores, memory, CPU and operating system."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from ddpbench.machine import cgroup
from ddpbench.machine.read_text import read_text
from ddpbench.machine.variables import EnvVar
from ddpbench.record.diagnosis import SHM_DIR
from ddpbench.record.errors import ConfigFailed, UsageError


def usable_cores(
    variables: Mapping[str, str] = os.environ, cgroup_root: Path = cgroup.CGROUP_ROOT, self_cgroup: Path = cgroup.SELF_CGROUP
) -> float:
    """Cores that the job may use on its node: the minimum of affinity, all cgroup quotas, and SLURM's allocation.

    Raises UsageError if SLURM's allocation is not a number of cores.
    """
    limits = [float(len(os.sched_getaffinity(0))), *cgroup.cpu_quotas(cgroup_root, self_cgroup)]
    return min(limits if (allocated := slurm_cores(variables)) is None else [*limits, float(allocated)])


def slurm_cores(variables: Mapping[str, str] = os.environ) -> int | None:
    """Cores allocated by SLURM on this node; None outside SLURM jobs. Raises UsageError if it is not a number of cores."""
    allocated = variables.get(EnvVar.SLURM_CPUS_ON_NODE)
    if not allocated:
        return None
    if not allocated.isdecimal() or int(allocated) < 1:
        raise UsageError(f"SLURM_CPUS_ON_NODE is not a number of cores: '{allocated}'", "SLURM sets it; unset it outside a job")
    return int(allocated)


def machine_id() -> str:
    """Identifier of this machine or container, from boot id, MAC addresses and namespaces. Host names may not be unique.

    Virtual machines cloned from one snapshot share its boot id, but not its MAC addresses.
    """
    boot_id = read_text(Path("/proc/sys/kernel/random/boot_id")).strip()
    mac_addresses = sorted(read_text(device.parent / "address").strip() for device in Path("/sys/class/net").glob("*/device"))
    namespaces = [os.readlink(link) for kind in ("pid", "net") if (link := Path(f"/proc/self/ns/{kind}")).is_symlink()]
    return " ".join([boot_id, *mac_addresses, *namespaces])


def cpu_name() -> str:
    """The CPU's name from ``/proc/cpuinfo``, or the architecture."""
    for line in read_text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def os_name() -> str:
    """Distribution and kernel."""
    try:
        release = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        release = platform.system()
    return f"{release}, kernel {platform.release()}"


def rss_bytes(pid: int) -> int | None:
    """Resident memory of a process in bytes; ``None`` if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def private_bytes(pid: int) -> int | None:
    """Memory of a process in bytes that it shares with no other; ``None`` if it has ended."""
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return None


def peak_rss_bytes() -> int | None:
    """Peak resident memory of this process in bytes; ``None`` if unknown."""
    peak = re.search(r"^VmHWM:\s*(\d+) kB", read_text(Path("/proc/self/status")), re.MULTILINE)
    return int(peak[1]) * 1024 if peak else None


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds, user and system, used so far by these processes. Processes that have ended count as 0."""
    total_s = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total_s += times.user + times.system
    return total_s


def host_memory_bytes() -> int:
    return int(psutil.virtual_memory().total)


def usable_memory_bytes() -> int:
    """Bytes that the job and its page cache may use: the host's memory, or the lowest cgroup limit."""
    return min([host_memory_bytes(), *cgroup.memory_limits()])


def free_memory_bytes() -> int:
    """Bytes that are free on the host, or that its cgroups leave the job if these are fewer."""
    return min([int(psutil.virtual_memory().available), usable_memory_bytes(), *cgroup.free_memory()])


MAX_MEMORY_FRACTION = 0.5
"""Fraction of the free memory that what is tried beside a training may take."""


def check_free_memory(what: str, num_bytes: int) -> None:
    """Raise ConfigFailed if ``what`` needs more than MAX_MEMORY_FRACTION of the free memory."""
    if num_bytes > MAX_MEMORY_FRACTION * (free := free_memory_bytes()):
        raise ConfigFailed(f"{what} need {num_bytes / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free")


def shared_memory_free_bytes(folder: str = SHM_DIR) -> int | None:
    """Free bytes in ``folder``; None if it does not exist."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize
