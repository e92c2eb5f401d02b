"""The record files that words of a command stand for."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from os.path import isdir
from pathlib import Path

import msgspec

from ddpbench.analysis.sweep_shards import ANY, PART, Found, outdated, together
from ddpbench.bench.kept import read
from ddpbench.record.errors import UsageError
from ddpbench.record.folder import finished
from ddpbench.record.record import Job


def latest(folder: Path) -> Path:
    """The newest record in ``folder``, by the second that its name begins with. Raises UsageError where there is none."""
    records = list(finished(folder.glob("*Z-*.json")))
    if not records:
        raise UsageError(f"no record in '{folder}'", "name a FILE, or a folder with -o DIR; 'ddpbench WORKLOAD' writes one")
    return max(records, key=lambda path: (path.name.partition("-")[0], _written(path)))


def latest_below(folder: Path) -> Path:
    """The record below ``folder`` that was started last, whatever its name. Raises UsageError where none can be read."""
    started = {}
    files = sorted(finished(folder.rglob("*.json")))
    for path in files:
        with suppress(OSError, ValueError, RecursionError):  # whatever is wrong with it
            started[path] = msgspec.json.decode(path.read_bytes(), type=_Started).started
    if not started:
        for path in files:
            read(path)  # which says what is wrong with it
        raise UsageError(f"no record in '{folder}'", "name a FILE, or a folder that holds some")
    return max(started, key=lambda path: (started[path], _written(path)))


def one_below(path: Path) -> Path:
    """``path``, or where that is a folder the record below it that was started last."""
    return latest_below(path) if isdir(path) else path


def whole(path: Path) -> Found:
    """The job in ``path``; of a part of a sweep, with the other parts that lie beside it."""
    if not PART.search(path.name):
        return path, read(path)
    beside = path.parent.glob(PART.sub(ANY, glob.escape(path.name)))
    return together((each, read(each)) for each in [path, *sorted({*finished(beside)} - {path})])[0]


def jobs_in(paths: Sequence[Path]) -> tuple[list[Job], list[UsageError]]:
    """The job of every file, and of every record below a folder; then why others of these files were left out.

    The parts of a sweep are one job. Raises UsageError for a file that is no record, and for a folder without any.
    """
    found: dict[Path, Found] = {}  # by where it really is: a file in a folder may be named beside it
    left_out: list[UsageError] = []
    for path in paths:
        if not isdir(path):
            found[path.resolve()] = path, read(path)
            continue
        below: dict[Path, Found] = {}
        unreadable: list[UsageError] = []
        for file in sorted(finished(path.rglob("*.json"))):
            try:
                below[file.resolve()] = file, read(file)
            except UsageError as problem:
                unreadable.append(problem)
        if not below and unreadable:
            raise unreadable[0]
        if not below:
            raise UsageError(f"no record in '{path}'", "name a FILE, or a folder that holds some")
        found |= below
        left_out += unreadable
    return [job for _, job in together(found.values())], [*left_out, *measured_again(found.values())]


def measured_again(found: Iterable[Found]) -> list[UsageError]:
    """Why parts of a sweep are left out, in whose place a later one stands; a file that is named twice is one."""
    files = [*{path.resolve(): (path, job) for path, job in found}.values()]
    return [UsageError(f"'{path}', of {job.started}: this part was measured again later") for path, job in outdated(files)]


def around(paths: Sequence[Path]) -> Path:
    """The folder that holds all of these files and folders; a lone folder holds itself."""
    folders = [path if isdir(path) else path.parent for path in paths]
    return Path(os.path.relpath(os.path.commonpath([folder.absolute() for folder in folders])))


class _Started(msgspec.Struct):
    """What tells a record from other JSON, and when it began."""

    started: str
    records: msgspec.Raw


def _written(path: Path) -> int:
    """By which records of the same second are told apart: that of several launches is made from the last of them."""
    return path.stat().st_mtime_ns
