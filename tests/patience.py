"""What comes about a little later than its cause, such as the end of a thread: the kernel lists one for a moment after it was joined."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG_S = 30.0


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LONG_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()
