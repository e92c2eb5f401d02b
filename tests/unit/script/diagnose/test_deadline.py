"""Scripts that make no more steps after the time limit."""

from __future__ import annotations

import threading
from unittest.mock import patch

from ddpbench.script.diagnose import deadline as module
from ddpbench.script.diagnose.deadline import Deadline


def test_stall_is_reported_once_no_step_follows() -> None:
    updates, stalled = iter([5, 7, 9, 9]), threading.Event()
    with patch.object(module, "MIN_OVERTIME_S", 0.02):
        Deadline(0.01, lambda: next(updates), lambda seconds: stalled.set())
    assert stalled.wait(20.0)
    assert next(updates, None) is None, "after the first time without a step"
