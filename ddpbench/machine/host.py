"""The host: the cores this job may use, its memory, its processor."""

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
from ddpbench.record.diagnosis import SHM_DIR
from ddpbench.record.errors import UsageError


def usable_cores(
    variables: Mapping[str, str] = os.environ, cgroup_root: Path = cgroup.CGROUP_ROOT, self_cgroup: Path = cgroup.SELF_CGROUP
) -> float:
    """Cores this job may use at once on its node: the least of affinity, every cgroup quota up the tree, and SLURM's share.

    Raises UsageError where SLURM's share is no number of cores.
    """
    limits = [float(len(os.sched_getaffinity(0))), *cgroup.cpu_quotas(cgroup_root, self_cgroup)]
    return min(limits if (granted := slurm_cores(variables)) is None else [*limits, float(granted)])


def slurm_cores(variables: Mapping[str, str] = os.environ) -> int | None:
    """SLURM's share of this node in cores; None outside of its jobs. Raises UsageError where it is no number of cores."""
    granted = variables.get("SLURM_CPUS_ON_NODE")
    if not granted:
        return None
    if not granted.isdecimal() or int(granted) < 1:
        raise UsageError(f"SLURM_CPUS_ON_NODE is no number of cores: '{granted}'", "SLURM sets it; outside a job, unset it")
    return int(granted)


def machine_id() -> str:
    """Tells this machine or container from others, of which some may have its name: by its boot, network cards and namespaces.

    Virtual machines that began as copies of one have the boot of that one, but not its cards.
    """
    boot = read_text(Path("/proc/sys/kernel/random/boot_id")).strip()
    cards = sorted(read_text(card.parent / "address").strip() for card in Path("/sys/class/net").glob("*/device"))
    spaces = [os.readlink(space) for kind in ("pid", "net") if (space := Path(f"/proc/self/ns/{kind}")).is_symlink()]
    return " ".join([boot, *cards, *spaces])


def cpu_name() -> str:
    """The processor's name as Linux gives it, or the architecture."""
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
    """Resident memory of a process, or ``None`` when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def peak_rss_bytes() -> int | None:
    """The most memory that this process has held at once, as Linux counts it; ``None`` where it does not tell."""
    peak = re.search(r"^VmHWM:\s*(\d+) kB", read_text(Path("/proc/self/status")), re.MULTILINE)
    return int(peak[1]) * 1024 if peak else None


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time, user and system, that these processes have used so far; one that is gone counts nothing."""
    spent = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            spent += times.user + times.system
    return spent


def host_memory_bytes() -> int:
    return int(psutil.virtual_memory().total)


def usable_memory_bytes() -> int:
    """Memory that this job and the page cache it fills may take: the host's, or the least limit of its cgroups."""
    return min([host_memory_bytes(), *cgroup.memory_limits()])


def shared_memory_free_bytes(folder: str = SHM_DIR) -> int | None:
    """What is free there; None without such a place."""
    try:
        place = os.statvfs(folder)
    except OSError:
        return None
    return place.f_bavail * place.f_frsize
