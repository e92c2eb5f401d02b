"""The end of other processes of this machine: noticed at once, without asking again and again, or brought about."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from ddpbench.script.ranks.gather import POLL_S

DEATH_S = 0.3
"""Seconds in which the death of a rank is noticed that has made the script of another fail."""


def kill_process(pid: int) -> None:
    """Kill a process that is known not to have ended, such as a stopped one, which no other signal ends."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def watch_processes(pids: Mapping[int, int], on_end: Callable[[int], None]) -> None:
    """Call ``on_end(key)`` in a thread when the process ``pids[key]`` ends, however it does. Linux only; elsewhere nothing happens."""
    poller, key_of = select.poll(), {}
    for key, pid in pids.items():
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            on_end(key)
        except (AttributeError, OSError):  # another system, or an old kernel
            return
        else:
            poller.register(descriptor, select.POLLIN)
            key_of[descriptor] = key

    def wait() -> None:
        while key_of:
            for descriptor, _ in poller.poll():
                poller.unregister(descriptor)
                with suppress(OSError):
                    os.close(descriptor)
                on_end(key_of.pop(descriptor))

    threading.Thread(target=wait, name="ddpbench-deaths", daemon=True).start()


def wait_for_death(is_noticed: Callable[[], bool]) -> bool:
    """Whether a process has ended, by ``is_noticed``. Waits a moment for it: the sockets of a process close a little before it ends."""
    end_s = time.monotonic() + DEATH_S
    while not is_noticed() and time.monotonic() < end_s:
        time.sleep(POLL_S)
    return is_noticed()
