"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Within, no other process is, on any node that shares ``folder``, which is made. Raises OSError where it cannot be written."""
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
        lock.close()  # who held it took the file away: the next lock is another file
