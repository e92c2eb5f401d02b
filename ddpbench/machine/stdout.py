"""stdout where it is for the record alone: what somebody's loader or model prints goes to stderr, whatever prints it."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_original_stdout: TextIO | None = None  # one a process, as stdout is


def redirect_stdout() -> None:
    """From now on, in worker processes too, only ``for_the_record`` is the stdout that this process was given."""
    global _original_stdout
    sys.stdout.flush()
    _original_stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def record_stdout() -> TextIO:
    return _original_stdout or sys.stdout
