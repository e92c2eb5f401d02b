"""Entry point of the program. Installs signal handlers first, so that signals end imports cleanly, too."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from ddpbench.distributed.exit_status import exit_on_early_signal
from ddpbench.machine.signals import SignalReceived, handle_signals

GC_THRESHOLD = 100_000
"""New objects per garbage collection. With Python's 700, imports are much slower, and modules never become garbage."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A usage error or a signal ends the process with one line."""
    gc.set_threshold(GC_THRESHOLD)
    with handle_signals(exit_on_early_signal):
        from ddpbench.cli.program import run_command

        try:
            return run_command(list(sys.argv[1:] if argv is None else argv))
        except SignalReceived as stopped:
            exit_on_early_signal(stopped.received)
