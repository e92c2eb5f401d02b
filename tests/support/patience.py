"""Wait for conditions that become true shortly after their cause, such as the end of a process."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()
