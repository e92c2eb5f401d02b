"""The first line of a command: from there on a signal ends it with one line, also while the program and torch are imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ddpbench.distributed.exit_status import end_early
from ddpbench.machine.signals import Stopped, heard_by


def main(words: Sequence[str] | None = None) -> int:
    """Carries out one command; returns its exit code. An error that is the user's ends the process with one line and a hint."""
    with heard_by(end_early):
        from ddpbench.cli.program import carry_out

        try:
            return carry_out(list(sys.argv[1:] if words is None else words))
        except Stopped as stopped:
            end_early(stopped.received)
