"""Signals that reach the process which starts the ranks."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

from ddpbench.distributed.exit_status import interrupted_error
from ddpbench.machine.signals import HANDLED_SIGNALS
from ddpbench.machine.stderr import print_error


class SignalForwarder:
    """Hears what ends a run, for all its launches: the first signal is passed on to the one that runs.

    Ranks that do not listen yet get a SIGTERM for any: at a Ctrl-C an interpreter that is importing torch prints a traceback, or
    goes on. Where no launch runs, this process ends.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._forward: Callable[[signal.Signals], None] | None = None
        for watched in HANDLED_SIGNALS:
            signal.signal(watched, self._on_signal)

    def wait(self, child: subprocess.Popen[bytes], is_listening: Callable[[], bool]) -> int:
        """The exit code of ``child``, which hears what comes meanwhile."""
        self._forward = lambda received: child.send_signal(received if is_listening() else signal.SIGTERM)
        code = child.wait()
        self._forward = None
        return code

    def report_interrupted(self) -> int:
        """Says what was received, where no rank has; returns the exit code."""
        assert self.received is not None
        error = interrupted_error(self.received, " before the ranks were at work")
        print_error(error)
        return error.exit_code

    def _on_signal(self, number: int, _: object) -> None:
        if self.received:
            return
        self.received = signal.Signals(number)
        if self._forward:
            self._forward(self.received)
        else:
            os._exit(self.report_interrupted())
