"""The records in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ddpbench.record.errors import UsageError
from ddpbench.record.record import Record, load

NEWEST = 30
"""Files looked at: their names begin with the time, and the whole of them is read."""


def finished(paths: Iterable[Path]) -> Iterator[Path]:
    """Without a profiler's traces, and without names that a run has only reserved."""
    return (path for path in paths if ".trace" not in path.suffixes and path.stat().st_size)


def earlier_runs(folder: Path) -> list[Record]:
    """Every record in the newest job files of ``folder``, oldest first. Files that cannot be read are passed over."""
    records: list[Record] = []
    for path in sorted(finished(folder.glob("*.json")))[-NEWEST:]:
        with suppress(UsageError):
            records += load(path).records
    return records
