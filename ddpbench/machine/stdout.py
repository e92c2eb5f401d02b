"""stdout where it is for the record alone: what somebody's loader or model prints goes to stderr, whatever prints it."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_kept: TextIO | None = None  # one a process, as stdout is


def leave_to_the_record() -> None:
    """From now on, in worker processes too, only ``for_the_record`` is the stdout that this process was given."""
    global _kept
    sys.stdout.flush()
    _kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def for_the_record() -> TextIO:
    return _kept or sys.stdout
