"""The end of another process is noticed."""

from __future__ import annotations

import signal
import subprocess
import sys
from queue import Queue

import pytest

from ddpbench.script.ranks.deaths import watch_processes


@pytest.mark.parametrize("received", [signal.SIGKILL, signal.SIGTERM])
def test_end_of_a_process_is_reported_and_that_of_others_is_not(received: signal.Signals) -> None:
    sleep = [sys.executable, "-c", "input()"]
    ended: Queue[int] = Queue()
    with subprocess.Popen(sleep, stdin=subprocess.PIPE) as one, subprocess.Popen(sleep, stdin=subprocess.PIPE) as other:
        watch_processes({1: one.pid, 2: other.pid}, ended.put)
        one.send_signal(received)
        assert ended.get(timeout=20) == 1
        assert ended.empty()
        other.kill()
        assert ended.get(timeout=20) == 2


def test_process_that_has_ended_before_is_reported_at_once() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    ended: Queue[int] = Queue()
    watch_processes({7: done.pid}, ended.put)
    assert ended.get(timeout=20) == 7
