"""stderr for errors and notes; stdout for the record alone."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

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


_original_stdout: TextIO | None = None  # one a process, as stdout is


def redirect_stdout() -> None:
    """From now on, in worker processes too, only ``for_the_record`` is the stdout that this process was given."""
    global _original_stdout
    sys.stdout.flush()
    _original_stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def record_stdout() -> TextIO:
    return _original_stdout or sys.stdout
