"""Exclusive lock on a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold the lock on ``folder``, against processes on all nodes that share it. Creates ``folder``.

    Raises OSError if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ".ddpbench-lock"
    with _locked(file):
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def _locked(file: Path) -> TextIO:
    while True:
        lock = file.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                    return lock
        except BaseException:
            lock.close()
            raise
        lock.close()  # the previous holder deleted the file: lock the new one
