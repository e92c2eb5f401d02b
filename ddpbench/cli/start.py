"""Entry point of the program. Installs signal handlers first, so that signals end imports cleanly, too."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ddpbench.distributed.exit_status import exit_on_early_signal
from ddpbench.machine.garbage import collect_rarely
from ddpbench.machine.signals import SignalReceived, handle_signals
from ddpbench.machine.start_time import PROGRAM_START_S as PROGRAM_START_S  # taken before the slow imports


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A usage error or a signal ends the process with one line."""
    collect_rarely()
    with handle_signals(exit_on_early_signal):
        from ddpbench.cli.program import run_command

        try:
            return run_command(list(sys.argv[1:] if argv is None else argv))
        except SignalReceived as stopped:
            exit_on_early_signal(stopped.received)
