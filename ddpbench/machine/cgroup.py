"""Limits and throttling of this process by cgroups, version 1, version 2 or both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddpbench.machine.read_text import read_text

CGROUP_ROOT, SELF_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cpu_quotas(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> Iterator[float]:
    """CPU quotas of this process in cores: of its cgroup and all ancestors."""
    for level in _ancestor_groups("cpu", root, self_cgroup):
        if quota := _cpu_quota(level):
            yield quota


def memory_limits(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> Iterator[int]:
    """Memory limits in bytes of this process, page cache included: of its cgroup and all ancestors."""
    for level in _ancestor_groups("memory", root, self_cgroup):
        if (limit := _memory_limit(level)) is not None:
            yield limit


def free_memory(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> Iterator[int]:
    """Bytes that each limited cgroup of this process has left, counting the page cache that the kernel would drop first as free."""
    for level in _ancestor_groups("memory", root, self_cgroup):
        used = read_text(level / "memory.current") or read_text(level / "memory.usage_in_bytes")
        if (limit := _memory_limit(level)) is not None and used.isdecimal():
            stats = dict(line.split(maxsplit=1) for line in read_text(level / "memory.stat").splitlines())
            droppable = int(stats.get("total_inactive_file", 0) or stats.get("inactive_file", 0))
            yield max(0, limit - max(0, int(used) - droppable))


def throttled_s(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> float | None:
    """Seconds, summed over cores, for which a quota has throttled this process's cgroup; None without a quota.

    With several quotas, the maximum: their throttled times may overlap.
    """
    return max((_throttled_s(level) for level in _ancestor_groups("cpu", root, self_cgroup) if _cpu_quota(level)), default=None)


def _ancestor_groups(controller: str, root: Path, self_cgroup: Path) -> Iterator[Path]:
    """Folders of this process's cgroup and its ancestors: version 2's, and those of version 1's ``controller``."""
    for line in read_text(self_cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            yield level
            if level == base:
                break


def _memory_limit(level: Path) -> int | None:
    """Bytes, from version 2's ``memory.max`` or version 1's ``memory.limit_in_bytes``; None for none."""
    limit = read_text(level / "memory.max") or read_text(level / "memory.limit_in_bytes")
    return int(limit) if limit.isdecimal() else None  # not "max"


def _cpu_quota(level: Path) -> float:
    """Quota in cores, from version 2's ``cpu.max`` or version 1's ``cpu.cfs_quota_us``; 0 for none."""
    if not (text := read_text(level / "cpu.max")):
        text = f"{read_text(level / 'cpu.cfs_quota_us')} {read_text(level / 'cpu.cfs_period_us')}"
    with suppress(ValueError, ZeroDivisionError):  # "max 100000", or no files at all
        quota, period = map(float, text.split())
        return max(0.0, quota / period)  # -1 is version 1's "none"
    return 0.0


def _throttled_s(level: Path) -> float:
    """Throttled seconds from ``cpu.stat``: version 2 counts microseconds, version 1 nanoseconds."""
    counts = dict(line.split(maxsplit=1) for line in read_text(level / "cpu.stat").splitlines())
    return float(counts.get("throttled_usec", 0)) / 1e6 or float(counts.get("throttled_time", 0)) / 1e9
