"""Scripts that make no more steps after the time limit."""

from __future__ import annotations

import threading
from unittest.mock import patch

from ddpbench.script.diagnose import deadline as module
from ddpbench.script.diagnose.deadline import Deadline


def test_stall_is_reported_once_no_step_follows() -> None:
    updates, stalled = iter([5, 7, 9, 9]), threading.Event()
    with patch.object(module, "MIN_OVERTIME_S", 0.02):
        Deadline(0.01, lambda: next(updates), lambda: None, lambda seconds: stalled.set())
    assert stalled.wait(20.0)
    assert next(updates, None) is None, "after the first time without a step"


def test_script_that_goes_on_with_its_steps_is_ended_after_two_overtimes() -> None:
    counted, ended = [0], threading.Event()

    def count() -> int:
        counted[0] += 1
        return counted[0]

    with patch.object(module, "MIN_OVERTIME_S", 0.02):
        Deadline(0.01, count, ended.set, lambda seconds: None)
    assert ended.wait(20.0)
    assert counted[0] >= 3
