"""The pause before a fork."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from ddpbench.machine import forks
from ddpbench.machine.forks import pause_before_forks


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="forks of this CPython do not hang")
def test_thread_that_was_just_woken_runs_before_a_fork() -> None:
    """Without the pause it does not: the thread that forks holds the interpreter's lock. On a busy machine it may come too late."""
    pause_before_forks()
    assert any(woken_thread_has_run_in_fork() for _ in range(20))


def woken_thread_has_run_in_fork() -> bool:
    time.sleep(2 * forks.BURST_S)
    woken, has_run = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: woken.wait() and has_run.set())
    thread.start()
    time.sleep(0.01)  # until it waits
    woken.set()
    child = os.fork()
    if not child:
        os._exit(not has_run.is_set())
    thread.join()
    return os.waitpid(child, 0)[1] == 0
