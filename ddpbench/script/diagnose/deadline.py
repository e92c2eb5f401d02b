"""Ends a diagnosis that its stages do not end: of a script that makes no more steps, or whose steps give it nothing to measure."""

from __future__ import annotations

import threading
from collections.abc import Callable

NUM_OVERTIMES = 2
"""Overtimes after which a script that still makes steps is ended at the next one: its batches come from no loader that is watched."""

MIN_OVERTIME_S, OVERTIME_FRACTION = 30.0, 0.5
"""Seconds after the time limit, or this fraction of it if that is more, in which a script must make a step."""


class Deadline:
    """Calls ``on_stall(seconds)`` in a thread, once, if after ``limit_s`` no update follows for so many seconds.

    If updates go on, ``end_script`` ends it in the end. The thread ends with the process.
    """

    def __init__(
        self, limit_s: float, num_updates: Callable[[], int], end_script: Callable[[], None], on_stall: Callable[[float], None]
    ) -> None:
        self._num_updates, self._end_script, self._on_stall = num_updates, end_script, on_stall
        self._num_checks = 0
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
            return
        if self._num_checks == NUM_OVERTIMES:
            self._end_script()
        self._num_checks += 1
        self._updates = updates
        self._check_after(self._overtime_s)
