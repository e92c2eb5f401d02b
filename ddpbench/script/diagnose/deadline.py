"""Notices a script that makes no more steps after the time limit of its diagnosis, and so cannot be ended at one."""

from __future__ import annotations

import threading
from collections.abc import Callable

MIN_OVERTIME_S, OVERTIME_FRACTION = 30.0, 0.5
"""Seconds after the time limit, or this fraction of it if that is more, in which a script must make a step."""


class Deadline:
    """Calls ``on_stall(seconds)`` in a thread, once, if after ``limit_s`` no update follows for so many seconds.

    The thread ends with the process.
    """

    def __init__(self, limit_s: float, num_updates: Callable[[], int], on_stall: Callable[[float], None]) -> None:
        self._num_updates, self._on_stall = num_updates, on_stall
        self._overtime_s = max(MIN_OVERTIME_S, OVERTIME_FRACTION * limit_s)
        self._updates = -1
        self._check_after(limit_s)

    def _check_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._check)
        timer.daemon = True
        timer.start()

    def _check(self) -> None:
        updates = self._num_updates()
        if updates == self._updates:
            self._on_stall(self._overtime_s)
        else:
            self._updates = updates
            self._check_after(self._overtime_s)
