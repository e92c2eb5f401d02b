"""Where a thread of a script stands, as a line of the script."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import ddpbench
from ddpbench.machine.progress_marker import main_thread_frame

LIBRARY_FOLDERS = (str(Path(ddpbench.__file__).parent), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
LIBRARY_PARTS = ("site-packages", "dist-packages", "<")
"""Code that is not the user's: these folders, what pip installed, and code without a file."""

MAX_SOURCE_LENGTH = 60


def user_line(shows_code: bool = True, thread: int | None = None) -> str:
    """``train.py:57 in run_epoch: loss.backward()``: the innermost line of the user's own code in ``thread``, from any thread.

    ``thread`` is an identifier, or None for the main thread, as is one that has ended. Of an installed program, which has no own code, the
    innermost line. Empty if the thread runs no Python code.
    """
    frame = sys._current_frames().get(thread or 0) or main_thread_frame()
    if frame is None:
        return ""
    own: FrameType | None = frame
    while own and is_library(own.f_code.co_filename):
        own = own.f_back
    found = own or frame
    file, line = found.f_code.co_filename, found.f_lineno
    source = linecache.getline(file, line).strip() if shows_code else ""
    shortened = f"{source[: MAX_SOURCE_LENGTH - 3]}..." if len(source) > MAX_SOURCE_LENGTH else source
    return f"{Path(file).name}:{line} in {found.f_code.co_name}" + (f": {shortened}" if shortened else "")


def is_library(file: str) -> bool:
    """Whether ``file`` is not part of the user's own code."""
    return any(part in file for part in LIBRARY_PARTS) or file.startswith(LIBRARY_FOLDERS)
