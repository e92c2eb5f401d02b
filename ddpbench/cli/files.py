"""The record files that words of a command stand for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ddpbench.record.errors import UsageError
from ddpbench.record.record import Job, load


def latest(folder: Path) -> Path:
    """The newest record in ``folder``, by the time that its name begins with. Raises UsageError where there is none."""
    records = list(_finished(folder.glob("*Z-*.json")))
    if not records:
        raise UsageError(f"no record in '{folder}'", "name a FILE, or a folder with -o DIR; 'ddpbench WORKLOAD' writes one")
    return max(records, key=lambda path: path.stem)


def jobs_in(paths: Sequence[Path]) -> tuple[list[Job], list[UsageError]]:
    """The job of every file, and of every record below a folder; then why other files of these folders were left out.

    Raises UsageError for a file that is no record, and for a folder without any.
    """
    jobs, left_out = [], []
    for path in paths:
        if not path.is_dir():
            jobs.append(load(path))
            continue
        before = len(jobs)
        for file in sorted(_finished(path.rglob("*.json"))):
            try:
                jobs.append(load(file))
            except UsageError as problem:
                left_out.append(problem)
        if len(jobs) == before:
            raise UsageError(f"no record in '{path}'", "name a FILE, or a folder that holds some")
    return jobs, left_out


def around(paths: Sequence[Path]) -> Path:
    """The folder that holds all of these files and folders; a lone folder holds itself."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    return Path(os.path.relpath(os.path.commonpath([folder.absolute() for folder in folders])))


def _finished(paths: Iterable[Path]) -> Iterator[Path]:
    """Without a profiler's traces, and without names that a run has only reserved."""
    return (path for path in paths if ".trace" not in path.suffixes and path.stat().st_size)
