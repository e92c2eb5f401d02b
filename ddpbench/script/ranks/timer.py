"""A timer for a loop that does several things, each at its own interval."""

from __future__ import annotations

import time


class Timer:
    """Is due every ``period_s`` seconds, for the first time after ``first_s``, by default a period; never if ``period_s`` is None."""

    def __init__(self, period_s: float | None, first_s: float | None = None) -> None:
        self._period_s = period_s
        self._due_s = time.monotonic() + (first_s if first_s is not None else period_s or 0.0)

    def is_due(self) -> bool:
        """Whether the time has come; if so, the next period begins now."""
        now_s = time.monotonic()
        if self._period_s is None or now_s < self._due_s:
            return False
        self._due_s = now_s + self._period_s
        return True
