"""Finds and loads the record files that a command's arguments name."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from os.path import isdir
from pathlib import Path

import msgspec

from ddpbench.analysis.sweep_shards import SHARD_GLOB, SHARD_SUFFIX, JobFile, merge_shards, outdated_shards
from ddpbench.bench.journal import load_job
from ddpbench.record.errors import UsageError
from ddpbench.record.io import job_files
from ddpbench.record.record import Job


def latest_record(folder: Path) -> Path:
    """The newest record in ``folder``, by the timestamp in its name. Raises UsageError if there is none."""
    records = list(job_files(folder.glob("*Z-*.json")))
    if not records:
        raise UsageError(f"no record in '{folder}'", "give a FILE, or another folder with -o DIR; 'ddpbench WORKLOAD' writes a record")
    return max(records, key=lambda path: (path.name.partition("-")[0], _mtime_ns(path)))


def latest_record_below(folder: Path) -> Path:
    """The record below ``folder`` that was started last, under any name. Raises UsageError if none can be read."""
    started = {}
    files = sorted(job_files(folder.rglob("*.json")))
    for path in files:
        with suppress(OSError, ValueError, RecursionError):  # skip any unreadable file
            started[path] = msgspec.json.decode(path.read_bytes(), type=_RecordHeader).started
    if not started:
        for path in files:
            load_job(path)  # raises UsageError with the problem
        raise UsageError(f"no record in '{folder}'", "give a FILE, or a folder that contains records")
    return max(started, key=lambda path: (started[path], _mtime_ns(path)))


def resolve_record(path: Path) -> Path:
    """``path``, or the record below it that was started last if it is a folder."""
    return latest_record_below(path) if isdir(path) else path


def load_with_shards(path: Path) -> JobFile:
    """The job in ``path``; a sweep shard is merged with the other shards in its folder."""
    if not SHARD_SUFFIX.search(path.name):
        return path, load_job(path)
    siblings = path.parent.glob(SHARD_SUFFIX.sub(SHARD_GLOB, glob.escape(path.name)))
    return merge_shards((shard, load_job(shard)) for shard in [path, *sorted({*job_files(siblings)} - {path})])[0]


def load_jobs(paths: Sequence[Path]) -> tuple[list[Job], list[UsageError]]:
    """The jobs of all files and of all records below folders, and one error per skipped file.

    The shards of a sweep become one job. Raises UsageError for a file that is not a record, and for a folder without records.
    """
    found: dict[Path, JobFile] = {}  # by resolved path, since a file may be named together with its folder
    skipped: list[UsageError] = []
    for path in paths:
        if not isdir(path):
            found[path.resolve()] = path, load_job(path)
            continue
        below: dict[Path, JobFile] = {}
        unreadable: list[UsageError] = []
        for file in sorted(job_files(path.rglob("*.json"))):
            try:
                below[file.resolve()] = file, load_job(file)
            except UsageError as problem:
                unreadable.append(problem)
        if not below and unreadable:
            raise unreadable[0]
        if not below:
            raise UsageError(f"no record in '{path}'", "give a FILE, or a folder that contains records")
        found |= below
        skipped += unreadable
    return [job for _, job in merge_shards(found.values())], [*skipped, *outdated_shard_errors(found.values())]


def outdated_shard_errors(found: Iterable[JobFile]) -> list[UsageError]:
    """One error per sweep shard that a later measurement of the same part replaces; a file named twice counts once."""
    files = [*{path.resolve(): (path, job) for path, job in found}.values()]
    return [
        UsageError(f"'{path}', of {job.started}: superseded by a later measurement of the same part")
        for path, job in outdated_shards(files)
    ]


def common_folder(paths: Sequence[Path]) -> Path:
    """The deepest folder that contains all ``paths``; for a single folder, the folder itself."""
    folders = [path if isdir(path) else path.parent for path in paths]
    return Path(os.path.relpath(os.path.commonpath([folder.absolute() for folder in folders])))


class _RecordHeader(msgspec.Struct):
    """Start time of a record; ``records`` distinguishes it from other JSON files."""

    started: str
    records: msgspec.Raw


def _mtime_ns(path: Path) -> int:
    """Modification time, to order records of the same second: a merged record is written after its last launch."""
    return path.stat().st_mtime_ns
