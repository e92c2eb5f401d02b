"""Hearing a signal: between two steps of Python, and while the main thread is stuck inside a collective.

Python runs signal handlers between bytecodes, which a rank that waits in C never reaches. The wake-up file descriptor is
written by the C handler itself, and a thread reads it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, a launcher's or SLURM's end, and the warning that SLURM sends ahead of a time limit."""


class SignalReceived(BaseException):
    """A signal came while something is half made: whoever makes it takes it away on the way out."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received)
        self.received = received


def raise_signal_received(received: signal.Signals) -> NoReturn:
    raise SignalReceived(received)


@contextmanager
def handle_signals(callback: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Within, ``callback`` hears every watched signal, between two steps of the main thread."""
    before = {watched: signal.signal(watched, lambda number, _: callback(signal.Signals(number))) for watched in HANDLED_SIGNALS}
    try:
        yield
    finally:
        for watched, handler in before.items():
            signal.signal(watched, handler)


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def set_parent_death_signal(signum: signal.Signals) -> None:
    """Asks Linux to send ``signum`` to this process when its parent is gone, even by SIGKILL (prctl(2)); elsewhere nobody is asked."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)


def start_signal_thread(on_signal: Callable[[signal.Signals], None]) -> None:
    """Calls ``on_signal`` from a thread for every watched signal. Child processes get the defaults back."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for watched in HANDLED_SIGNALS:
        signal.signal(watched, lambda *_: None)  # the interpreter must not raise: the thread decides
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_restore_defaults_in_child)

    def read() -> None:
        while data := os.read(reader, 1):
            if data[0] in HANDLED_SIGNALS:  # others have handlers too: a loader hears of its children
                on_signal(signal.Signals(data[0]))

    threading.Thread(target=read, name="ddpbench-signals", daemon=True).start()


def _restore_defaults_in_child() -> None:
    """A forked child must not write into its parent's pipe, and ends by a signal as any process does."""
    signal.set_wakeup_fd(-1)
    for watched in HANDLED_SIGNALS:
        signal.signal(watched, signal.SIG_DFL)
