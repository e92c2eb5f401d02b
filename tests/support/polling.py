"""Wait for conditions that become true shortly after their cause, such as the end of a process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until ``condition`` holds, for at most ``timeout_s`` seconds; returns whether it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
