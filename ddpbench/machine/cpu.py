"""CPU usage and affinity of the cores that this process may run on."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from ddpbench.machine import cgroup
from ddpbench.machine.read_text import read_text
from ddpbench.record.loader_stats import CpuUsage

PROC_STAT, PROC_PRESSURE_CPU, PROC_SCHEDSTAT = Path("/proc/stat"), Path("/proc/pressure/cpu"), Path("/proc/thread-self/schedstat")
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IDLE, IOWAIT, STEAL = 3, 4, 7
"""Columns of ``/proc/stat``. The two behind STEAL, of guests, are counted in others already."""


class CpuMonitor:
    """Looks at the cores when a round begins and when it ends. On a host of many cores a look takes some milliseconds."""

    def start(self) -> None:
        """The round begins, on the cores that this process may run on now."""
        self._cores = os.sched_getaffinity(0)
        self._busy_s, self._throttled_s, self._waited_s = cores_busy_s(self._cores), cgroup.throttled_s(), _cpu_pressure_wait_s()
        self._began = perf_counter()

    def finish(self) -> CpuUsage | None:
        """What the cores did since ``start``; None where the kernel does not tell of each of them."""
        wall_s = perf_counter() - self._began
        busy = _delta(self._busy_s, cores_busy_s(self._cores))
        if busy is None:
            return None
        waited = _delta(self._waited_s, _cpu_pressure_wait_s())
        return CpuUsage(
            num_cores=len(self._cores),
            busy_s=busy,
            wall_s=wall_s,
            throttled_s=_delta(self._throttled_s, cgroup.throttled_s()),
            cpu_pressure_fraction=None if waited is None else min(1.0, waited / wall_s),
        )


def cores_busy_s(cores: Collection[int], stat: Path = PROC_STAT) -> float | None:
    """Seconds for which ``cores`` were busy since the host started, those that a hypervisor took for others among them.

    None where the kernel does not tell of each of them, as in containers that hide the host's cores, or that count nothing.
    """
    lines = re.findall(r"^cpu(\d+) (.+)$", read_text(stat), re.MULTILINE)
    ticks = {int(core): [int(count) for count in counts.split()] for core, counts in lines}
    if not set(cores) <= ticks.keys() or not any(any(ticks[core]) for core in cores):
        return None
    busy = sum(count for core in cores for column, count in enumerate(ticks[core][: STEAL + 1]) if column not in (IDLE, IOWAIT))
    return busy / CLOCK_TICKS_PER_S


def runqueue_wait_s(schedstat: Path = PROC_SCHEDSTAT) -> float | None:
    """Seconds for which the calling thread could have run so far, and had no core; None where the kernel does not count them."""
    counts = read_text(schedstat).split()
    return int(counts[1]) / 1e9 if len(counts) == 3 else None


def _cpu_pressure_wait_s() -> float | None:
    """Seconds for which some thread of the machine has waited for a core; None where the kernel does not count them."""
    total = re.search(r"^some .*total=(\d+)", read_text(PROC_PRESSURE_CPU), re.MULTILINE)
    return int(total[1]) / 1e6 if total else None


def _delta(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)


INITIAL_AFFINITY = sorted(os.sched_getaffinity(0))


def set_affinity(num_cores: int | None, local_rank: int) -> None:
    """Moves every thread of this process to ``num_cores`` of those it was given, other ranks' apart; with None back to all of them.

    Processes that start from now on, loader workers above all, keep to them too.
    """
    own = INITIAL_AFFINITY if num_cores is None else INITIAL_AFFINITY[local_rank * num_cores : (local_rank + 1) * num_cores]
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), own)
