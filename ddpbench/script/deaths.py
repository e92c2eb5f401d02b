"""The end of other processes of this machine: noticed at once, without asking again and again, or brought about."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress


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
