"""Errors and notes on stderr; stdout is reserved for the record."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from ddpbench.machine.progress_bars import room_for_lines
from ddpbench.record.errors import BenchError
from ddpbench.record.text import printable


def print_error(error: BenchError) -> None:
    """Print a ``ddpbench: error:`` line and a ``hint:`` line to stderr."""
    _write_stderr(error.format_stderr())


def print_note(text: str) -> None:
    """Print a ``ddpbench: note:`` line to stderr."""
    _write_stderr(f"ddpbench: note: {printable(text)}")


def _write_stderr(lines: str) -> None:
    """Write ``lines`` to stderr; a closed stderr is not an error."""
    with suppress(OSError, ValueError), room_for_lines(sys.stderr) as stream:
        stream.write(lines + "\n")
        stream.flush()


_original_stdout: TextIO | None = None  # one per process, as stdout is


def redirect_stdout() -> None:
    """Redirect stdout to stderr, in worker processes too. Only ``record_stdout`` still returns the original stdout."""
    global _original_stdout
    sys.stdout.flush()
    _original_stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def record_stdout() -> TextIO:
    return _original_stdout or sys.stdout
