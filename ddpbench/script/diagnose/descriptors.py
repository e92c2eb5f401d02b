"""Positions of the files that this process has open: a forked worker that moves one shares the file with it.

This shows what a search of the dataset cannot: files that libraries in C or Rust have opened, and that they read from their position.
Reads at a given place (``pread``) and memory maps move nothing, and can be shared.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from ddpbench.script.diagnose.object_parts import INSTALLED

DESCRIPTORS = "/proc/self/fd"
NOT_DATA = ("/proc/", "/sys/", "/dev/", *INSTALLED)


@dataclass(frozen=True)
class Position:
    """Where the next read of an open file begins."""

    descriptor: int
    inode: int
    path: str
    offset: int


def positions() -> list[Position]:
    """Those of the data files that this process can read; empty if the system does not list them."""
    found = []
    with suppress(OSError):
        for name in os.listdir(DESCRIPTORS):
            with suppress(OSError):  # closed meanwhile
                position = _position(int(name))
                if position is not None:
                    found.append(position)
    return found


def is_readable(descriptor: int) -> bool:
    """Whether it is open for reading. Raises OSError if it is not open."""
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY


def _position(descriptor: int) -> Position | None:
    status, path = os.fstat(descriptor), os.readlink(f"{DESCRIPTORS}/{descriptor}")
    if not stat.S_ISREG(status.st_mode) or not is_readable(descriptor) or path.startswith(NOT_DATA) or not path.startswith("/"):
        return None
    return Position(descriptor, status.st_ino, path, os.lseek(descriptor, 0, os.SEEK_CUR))


def moved_since(before: list[Position]) -> list[Position]:
    """Those of ``before`` from which a process has read."""
    now = {(each.descriptor, each.inode): each.offset for each in positions()}
    return [each for each in before if now.get((each.descriptor, each.inode), each.offset) != each.offset]


def restore(moved: list[Position]) -> None:
    """Move the positions back, before this process reads again."""
    for each in moved:
        with suppress(OSError):
            os.lseek(each.descriptor, each.offset, os.SEEK_SET)
