"""Where a situation runs: under a quota, or with busy neighbours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from core_load import busy_process

CORES = 2
"""Number of cores of every situation, regardless of the machine."""

QUOTA_US, PERIOD_US = 100_000, 100_000
"""A quota of one core."""


def groups() -> Path | None:
    """The folder in which CPU cgroups can be created; None if they cannot."""
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
    """A quota of one core; pinned to one core if no cgroup can be created."""
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
    """A foreign busy process on every core."""
    with ExitStack() as stack:
        for core in os.sched_getaffinity(0):
            stack.enter_context(busy_process(core))
        yield []
