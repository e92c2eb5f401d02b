"""Forks of loader workers that do not hang."""

from __future__ import annotations

import os
import sys
import time
from functools import cache

PAUSE_S = 0.002
"""Long enough for a thread that has just been woken by the end of a collective."""

BURST_S = 0.05
"""Forks that follow each other sooner start the workers of one loader: only the first of them can follow a collective."""

_last_fork_s = 0.0


@cache
def pause_before_forks() -> None:
    """Let other threads run before a fork, from now on: a forked child of CPython 3.11 can hang, and a training with it.

    The child takes a lock of the interpreter (``_PyThreadState_DeleteExcept``) that another thread may have held during the fork: a C++
    thread takes it to free a tensor after a collective of gloo, and a script that starts an epoch forks its workers just then. CPython
    3.12 creates that lock again in the child.
    """
    if sys.version_info < (3, 12):
        os.register_at_fork(before=_pause)


def _pause() -> None:
    global _last_fork_s
    if time.monotonic() - _last_fork_s > BURST_S:
        time.sleep(PAUSE_S)
    _last_fork_s = time.monotonic()
