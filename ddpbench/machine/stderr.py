"""Lines on stderr: errors and notes, each with the program's name in front."""

from __future__ import annotations

import sys
from contextlib import suppress

from ddpbench.record.errors import BenchError
from ddpbench.record.text import printable


def print_error(error: BenchError) -> None:
    """One ``ddpbench: error:`` line and one ``hint:`` line on stderr."""
    _write_stderr(error.format_stderr())


def print_note(text: str) -> None:
    """One ``ddpbench: note:`` line on stderr."""
    _write_stderr(f"ddpbench: note: {printable(text)}")


def _write_stderr(lines: str) -> None:
    """A closed stderr is no second error."""
    with suppress(OSError, ValueError):
        sys.stderr.write(lines + "\n")
        sys.stderr.flush()
