"""Busy and idle processes on chosen cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CORE = min(os.sched_getaffinity(0))


@contextmanager
def busy_process(core: int = CORE) -> Iterator[int]:
    """PID of a process that computes continuously on one core."""
    script = f"import os; os.sched_setaffinity(0, {{{core}}}); print('on', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "on\n"
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def idle_process(core: int = CORE) -> Iterator[int]:
    """PID of a process that waits on one core."""
    with subprocess.Popen(["taskset", "-c", str(core), "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"\n", "it runs, and taskset has set the affinity"
        try:
            yield process.pid
        finally:
            process.kill()


def printed(script: str) -> str:
    """Output of a Python program on one core."""
    done = subprocess.run(["taskset", "-c", str(CORE), sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
