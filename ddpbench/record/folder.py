"""Finds record files in a folder."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ddpbench.record.errors import UsageError
from ddpbench.record.record import Record, load

MAX_PREVIOUS_FILES = 30
"""Maximum number of files to read, the newest by name. File names begin with the time."""


def completed_records(paths: Iterable[Path]) -> Iterator[Path]:
    """The paths that may be records: no profiler traces, no empty files that a run has only reserved, no dangling links."""
    return (path for path in paths if ".trace" not in path.suffixes and _has_content(path))


def previous_runs(folder: Path) -> list[Record]:
    """Every record in the newest job files of ``folder``, oldest first. Skips unreadable files."""
    records: list[Record] = []
    for path in sorted(completed_records(folder.glob("*.json")))[-MAX_PREVIOUS_FILES:]:
        with suppress(UsageError):
            records += load(path).records
    return records


def _has_content(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0
