"""Where a situation runs: under a quota, or beside somebody else's processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from busy import busy_process

CORES = 2
"""Every situation is made on so many cores, whatever the machine has."""

QUOTA_US, PERIOD_US = 100_000, 100_000
"""One core."""


def groups() -> Path | None:
    """The folder in which control groups for processor time can be made; None where they cannot."""
    for folder, file in ((Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us"), (Path("/sys/fs/cgroup"), "cpu.max")):
        probe = folder / f"probe-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError:
            continue
        held = (probe / file).exists() and os.access(probe / file, os.W_OK)
        probe.rmdir()
        if held:
            return folder
    return None


@contextmanager
def one_core() -> Iterator[list[str]]:
    """A quota of one core on all cores; where no control group can be made, one core alone."""
    folder = groups()
    if folder is None:
        yield ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        return
    group = folder / f"ddpbench-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


@contextmanager
def busy_neighbours() -> Iterator[list[str]]:
    """On every core a process of somebody else's that computes all the time."""
    with ExitStack() as stack:
        for core in os.sched_getaffinity(0):
            stack.enter_context(busy_process(core))
        yield []
