"""Forked children that hang, as if a lock had been held by another thread during the fork."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

_to_hang: list[int] = []
"""Its only element is the number of next children that hang; empty until it is used."""


@contextmanager
def hanging_forks(count: int) -> Iterator[list[int]]:
    """Make the next ``count`` forked children hang. The element of the list is how many are left; negative after further forks."""
    if not _to_hang:
        os.register_at_fork(before=_count, after_in_child=_hang)
    _to_hang[:] = [count]
    try:
        yield _to_hang
    finally:
        _to_hang[:] = [0]


def _count() -> None:
    _to_hang[0] -= 1


def _hang() -> None:
    if _to_hang[0] >= 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(600)
