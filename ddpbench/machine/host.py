"""The host: the cores this job may use, its memory, its processor."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from ddpbench.record.errors import UsageError

SPEED_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
)
SPEED_PREFIXES = ("NVIDIA_TF32_", "NCCL_", "TORCH_", "PYTORCH_", "CUDNN_", "CUBLAS_", "GLOO_")
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(variables: Mapping[str, str] = os.environ, cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float:
    """Cores this job may use at once on its node: the least of affinity, every cgroup quota up the tree, and SLURM's share.

    Raises UsageError where SLURM's share is no number of cores.
    """
    limits = [float(len(os.sched_getaffinity(0)))]
    limits += _cgroup_quotas(cgroups, own)
    if granted := variables.get("SLURM_CPUS_ON_NODE"):
        if not granted.isdecimal() or int(granted) < 1:
            raise UsageError(f"SLURM_CPUS_ON_NODE is no number of cores: '{granted}'", "SLURM sets it; outside a job, unset it")
        limits.append(float(granted))
    return min(limits)


def _cgroup_quotas(root: Path, own: Path) -> Iterator[float]:
    """Quotas in cores, from this process's cgroup up to the root: v2's ``cpu.max``, v1's ``cpu.cfs_quota_us``."""
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            quota, period = _quota(level)
            if quota > 0 and period > 0:
                yield quota / period
            if level == base:
                break


def _quota(level: Path) -> tuple[float, float]:
    """(quota, period) in microseconds at one cgroup; a quota of 0 means none."""
    try:
        if text := _text(level / "cpu.max"):
            quota, period = text.split()
            return (0.0 if quota == "max" else float(quota)), float(period)
        return float(_text(level / "cpu.cfs_quota_us") or 0), float(_text(level / "cpu.cfs_period_us") or 0)
    except ValueError:
        return 0.0, 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def cpu_name() -> str:
    """The processor's name as Linux gives it, or the architecture."""
    for line in _text(Path("/proc/cpuinfo")).splitlines():
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


def speed_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables that change how fast training runs."""
    return {name: value for name, value in sorted(variables.items()) if name in SPEED_VARIABLES or name.startswith(SPEED_PREFIXES)}


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process, or ``None`` when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def peak_resident_bytes() -> int | None:
    """The most memory that this process has held at once, as Linux counts it; ``None`` where it does not tell."""
    peak = re.search(r"^VmHWM:\s*(\d+) kB", _text(Path("/proc/self/status")), re.MULTILINE)
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
