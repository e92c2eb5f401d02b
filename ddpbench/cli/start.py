"""The first line of a command: from there on a signal ends it with one line, also while the program and torch are imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ddpbench.distributed.exit_status import exit_on_early_signal
from ddpbench.machine.signals import SignalReceived, handle_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Carries out one command; returns its exit code. An error that is the user's ends the process with one line and a hint."""
    with handle_signals(exit_on_early_signal):
        from ddpbench.cli.program import run_command

        try:
            return run_command(list(sys.argv[1:] if argv is None else argv))
        except SignalReceived as stopped:
            exit_on_early_signal(stopped.received)
