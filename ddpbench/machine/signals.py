"""Signal handling, also while the main thread is blocked inside a collective.

Python runs signal handlers between bytecodes, which a rank blocked in C code never reaches. But the C handler itself writes
to the wake-up file descriptor, which a thread reads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, termination by a launcher or SLURM, and the warning that SLURM sends before a time limit."""


class SignalReceived(BaseException):
    """Raised by a signal in the middle of a change to files, so that cleanup code runs."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received)
        self.received = received


def raise_signal_received(received: signal.Signals) -> NoReturn:
    raise SignalReceived(received)


Handler = Callable[[int, FrameType | None], object] | int | None

_handlers_before: dict[signal.Signals, Handler] = {}  # those that handle_signals has replaced


@contextmanager
def handle_signals(callback: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call ``callback`` in the main thread for each of HANDLED_SIGNALS; restore the previous handlers at the end."""

    def handle(number: int, _: FrameType | None) -> None:
        callback(signal.Signals(number))

    _handlers_before.update({signum: signal.signal(signum, handle) for signum in HANDLED_SIGNALS})
    try:
        yield
    finally:
        restore_handlers()


def restore_handlers() -> None:
    """Restore the handlers from before ``handle_signals``, at once: code that handles signals itself follows."""
    while _handlers_before:
        signum, handler = _handlers_before.popitem()
        signal.signal(signum, handler)


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def set_parent_death_signal(signum: signal.Signals) -> None:
    """Make Linux send ``signum`` to this process when its parent dies, even by SIGKILL (prctl(2)). No-op on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)


def start_signal_thread(on_signal: Callable[[signal.Signals], None]) -> None:
    """Call ``on_signal`` from a thread for each of HANDLED_SIGNALS. Forked children get the default handlers back."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for signum in HANDLED_SIGNALS:
        signal.signal(signum, lambda *_: None)  # the interpreter must not raise: the thread decides
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_restore_defaults_in_child)

    def read() -> None:
        while data := os.read(reader, 1):
            if data[0] in HANDLED_SIGNALS:  # other signals write here too, such as a loader's SIGCHLD
                on_signal(signal.Signals(data[0]))

    threading.Thread(target=read, name="ddpbench-signals", daemon=True).start()


def _restore_defaults_in_child() -> None:
    """Restore default handlers: a forked child must not write to its parent's pipe, and signals must end it."""
    signal.set_wakeup_fd(-1)
    for signum in HANDLED_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
