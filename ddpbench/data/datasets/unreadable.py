"""Files and folders that the system does not let this process read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from ddpbench.record.errors import UsageError


def raise_unreadable(problem: OSError) -> NoReturn:
    """Raises UsageError with the file's or folder's name."""
    raise UsageError(f"cannot read '{problem.filename}': {problem.strerror}") from problem


@contextmanager
def os_error_as_usage_error() -> Iterator[None]:
    """Around looking into folders and reading files of somebody's. Raises UsageError with the name of one that cannot be."""
    try:
        yield
    except OSError as problem:
        raise_unreadable(problem)
