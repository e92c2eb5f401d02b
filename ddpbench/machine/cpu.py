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
"""Columns of ``/proc/stat``. The two columns after STEAL (guest time) are already included in others."""


class CpuMonitor:
    """Measures CPU usage from ``start`` to ``finish``. Each call takes some milliseconds on a host with many cores."""

    def start(self) -> None:
        """Start measuring the cores that this process may run on now."""
        self._cores = os.sched_getaffinity(0)
        self._busy_s, self._throttled_s, self._waited_s = cores_busy_s(self._cores), cgroup.throttled_s(), _cpu_pressure_wait_s()
        self._began = perf_counter()

    def finish(self) -> CpuUsage | None:
        """CPU usage since ``start``; None if the kernel does not report every core."""
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
    """Core-seconds for which ``cores`` were busy since the host started, including time stolen by the hypervisor.

    None if the kernel does not report every core, as in containers that hide the host's cores or report zeros.
    """
    lines = re.findall(r"^cpu(\d+) (.+)$", read_text(stat), re.MULTILINE)
    ticks = {int(core): [int(count) for count in counts.split()] for core, counts in lines}
    if not set(cores) <= ticks.keys() or not any(any(ticks[core]) for core in cores):
        return None
    busy = sum(count for core in cores for column, count in enumerate(ticks[core][: STEAL + 1]) if column not in (IDLE, IOWAIT))
    return busy / CLOCK_TICKS_PER_S


def runqueue_wait_s(schedstat: Path = PROC_SCHEDSTAT) -> float | None:
    """Seconds for which the calling thread has been runnable but had no core; None if the kernel does not count them."""
    counts = read_text(schedstat).split()
    return int(counts[1]) / 1e9 if len(counts) == 3 else None


def _cpu_pressure_wait_s() -> float | None:
    """Seconds for which some thread of the machine has waited for a core; None if the kernel does not count them."""
    total = re.search(r"^some .*total=(\d+)", read_text(PROC_PRESSURE_CPU), re.MULTILINE)
    return int(total[1]) / 1e6 if total else None


def _delta(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)


INITIAL_AFFINITY = sorted(os.sched_getaffinity(0))


def set_affinity(num_cores: int | None, local_rank: int) -> None:
    """Pin every thread of this process to its own ``num_cores`` of the initial cores, disjoint from other local ranks.

    None restores all initial cores. Processes started later, such as loader workers, inherit the affinity.
    """
    cores = INITIAL_AFFINITY if num_cores is None else INITIAL_AFFINITY[local_rank * num_cores : (local_rank + 1) * num_cores]
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread), cores)
