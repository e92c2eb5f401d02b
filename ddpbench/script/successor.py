"""What a process becomes at its very end."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

REPLACE_S = 10.0
"""Seconds after which the process ends by itself: the command cannot be started."""


class Successor:
    """A command that takes the place of this process after the last exit function of the script.

    Unlike a child it has all the memory, on the host and on the GPU, that the script had. It begins in the folder of the construction, and
    may write everywhere if this process may not: construct it before the script, and before it is restricted.
    """

    def __init__(self) -> None:
        self._pid, self._folder = os.getpid(), os.getcwd()
        self._command: list[str] = []
        self._environment: Mapping[str, str] = {}
        self._has_ended = threading.Event()
        self.thread = threading.Thread(target=self._replace, name="ddpbench-successor", daemon=True)
        self.thread.start()
        atexit.register(self._end)  # the first one is called last

    def become(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command``, whose first word is the path of its program, at the end of the process."""
        self._command, self._environment = [*command], environment

    def _end(self) -> None:
        """Do what the interpreter and its libraries, which were imported before, do after this, and become the command."""
        if self._command and os.getpid() == self._pid:
            signal.setitimer(signal.ITIMER_REAL, 0.0)  # it would end the command
            for finish in (multiprocessing.util._exit_function, logging.shutdown):  # type: ignore[attr-defined]
                with suppress(Exception):
                    finish()
            for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()  # type: ignore[union-attr]
            self._has_ended.set()
            self.thread.join(REPLACE_S)

    def _replace(self) -> None:
        self._has_ended.wait()
        os.chdir(self._folder)
        os.execve(self._command[0], self._command, self._environment)
