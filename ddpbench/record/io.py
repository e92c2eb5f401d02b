"""Job files: written atomically, upgraded and validated on load, found in a folder."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ddpbench.record.errors import UsageError
from ddpbench.record.private import redact
from ddpbench.record.record import SCHEMA, Job, Record
from ddpbench.record.request import OutputOptions
from ddpbench.record.text import format_validation_error
from ddpbench.record.validate import find_inconsistency

DEFAULT_FOLDER = Path(OutputOptions().output_dir).parts

MAX_RECORD_BYTES = 100_000_000
"""A larger file is refused unread."""


def atomic_write(path: Path, data: bytes, overwrite: bool = True) -> None:
    """Write ``data`` to ``path`` through a temporary file in the same folder: flush, fsync, rename.

    Raises OSError and keeps the old file if that fails. Raises FileExistsError if ``path`` exists and ``overwrite`` is false.
    A device, a pipe, or a file that stdout or stderr goes to is appended to, since it must not be replaced.
    """
    if overwrite and path.exists() and (not path.is_file() or _is_stdout_or_stderr(path)):
        with path.open("ab") as file:
            file.write(data)
        return
    path = path.resolve()  # replace the target of a symlink, not the link
    if not overwrite:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    try:
        _replace(path, data)
    except BaseException:
        if not overwrite:
            path.unlink()
        raise


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _is_stdout_or_stderr(path: Path) -> bool:
    """Whether stdout or stderr goes to ``path``. Their readers keep the old file open."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return True
    return False


def encode_json(value: object) -> bytes:
    """``value`` as JSON. Bytes of file names that are not UTF-8, which Linux allows, are escaped: ``z\\udcfc.jpg``."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escape_surrogates(msgspec.to_builtins(value)))


def _escape_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _escape_surrogates(each) for name, each in value.items()}
    return [_escape_surrogates(each) for each in value] if isinstance(value, list | tuple) else value


def _open_defaults(job: dict[str, Any]) -> None:
    """Schema 2 had no automatic value of these flags: their defaults mean that they were not set."""
    for record in job.get("records", []):
        requested = record.get("requested") or {}
        for name, default in (("compile", "off"), ("fused_kernels", False), ("broadcast_buffers", True)):
            if requested.get(name) == default:
                requested[name] = None


def _unjudged_remedies(job: dict[str, Any]) -> None:
    """Schema 3 held predictions only: what remedies there are, and what to use, is judged when the job is opened."""
    if job.get("diagnosis"):
        job["diagnosis"]["remedies"] = None


UPGRADES: dict[int, Callable[[dict[str, Any]], None]] = {2: _open_defaults, 3: _unjudged_remedies}
"""By the schema that it reads: changes a decoded job file in place to the next schema."""

OLDEST_SCHEMA = min(UPGRADES, default=SCHEMA)
"""Oldest schema that can still be read. Schema 1 held sentences in place of codes."""

NOT_A_RECORD_HINT = "give a FILE that ddpbench wrote; runs are stored in results/runs"
"""The hint for a file that is not a record."""


Decoded = TypeVar("Decoded")


def slug(text: str) -> str:
    """``text`` for a file name: lower case, with single hyphens for anything but letters and digits."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def reserve_path(folder: Path, stem: str) -> Path:
    """Create ``stem.json`` in ``folder``, or ``stem-2.json`` ..., exclusively, so that two runs never share a name.

    Raises UsageError if the folder cannot be written.
    """
    try:
        _create_folder(folder)
        for attempt in range(1, 10_000):
            path = folder / (f"{stem}.json" if attempt == 1 else f"{stem}-{attempt}.json")
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                return path
            except FileExistsError:
                continue
    except OSError as problem:
        raise UsageError(f"cannot write results in '{folder}': {problem.strerror}", "choose another folder with -o DIR") from problem
    raise UsageError(f"no free file name for '{stem}' in '{folder}'", "choose another folder with -o DIR")


def _create_folder(folder: Path) -> None:
    """Create ``folder`` if it is missing. Git ignores the default folder of records if this creates it."""
    default = next((each for each in (folder, *folder.parents) if each.parts[-2:] == DEFAULT_FOLDER), None)
    is_new = default is not None and not default.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if default and is_new:
        default.joinpath(".gitignore").write_text("# Created by ddpbench.\n*\n")


def save(job: Job, path: Path) -> None:
    """Write ``job``, redacted if it says so, to ``path`` atomically. Raises OSError and keeps the old file if that fails.

    A folder that has been removed since is created again.
    """
    data = encode_json(redact(job) if job.redacted else job)
    try:
        atomic_write(path, data)
    except FileNotFoundError:
        _create_folder(path.parent)
        atomic_write(path, data)


def load(path: Path) -> Job:
    """The job in ``path``, upgraded to today's schema. Raises UsageError with the file and the invalid field or line."""
    try:
        _refuse_other_files(path)
        text = path.read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read '{path}': {problem.strerror}", NOT_A_RECORD_HINT) from problem
    header = _decode(path, text, _SchemaHeader)
    if header.schema > SCHEMA:
        raise UsageError(f"'{path}' has schema {header.schema}; this release reads up to {SCHEMA}", "update ddpbench")
    if header.schema < OLDEST_SCHEMA:
        writer = f"ddpbench {header.version}" if header.version else "an older ddpbench"
        raise UsageError(
            f"'{path}' was written by {writer} with schema {header.schema}; this release reads {OLDEST_SCHEMA} and later",
            f"measure again, or read it with {writer}",
        )
    if header.schema < SCHEMA:
        job_data = _decode(path, text, dict[str, Any])
        for schema in range(header.schema, SCHEMA):
            with suppress(AttributeError, KeyError, TypeError):  # an invalid file, whose field is named below
                UPGRADES[schema](job_data)
            job_data["schema"] = schema + 1
        text = encode_json(job_data)
    job = _decode(path, text, Job)
    if inconsistency := find_inconsistency(job):
        raise _not_a_record(path, inconsistency)
    return job


def _refuse_other_files(path: Path) -> None:
    """Raises UsageError for a pipe or a device, which may never end, and for a file that is far too large; OSError if there is none."""
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise _not_a_record(path, "it is a pipe or a device")
    if status.st_size > MAX_RECORD_BYTES:
        raise _not_a_record(path, f"it has {status.st_size / 1e6:,.0f} MB, more than the {MAX_RECORD_BYTES / 1e6:.0f} MB of any record")


def _decode(path: Path, text: bytes, kind: type[Decoded]) -> Decoded:
    """``text`` decoded as ``kind``. Raises UsageError with ``path`` and the problem for any invalid content."""
    try:
        text.decode()  # msgspec does not report where a byte is wrong
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as problem:
        raise _not_a_record(path, format_validation_error(problem)) from problem
    except msgspec.DecodeError as problem:
        byte = re.search(r"byte (\d+)", str(problem))  # None if the text is truncated
        raise _not_a_record(path, f"truncated or invalid JSON, near line {_line_number(text, int(byte[1]) if byte else None)}") from problem
    except UnicodeDecodeError as problem:
        raise _not_a_record(path, f"not UTF-8, near line {_line_number(text, problem.start)}") from problem
    except RecursionError as problem:
        raise _not_a_record(path, "nested too deeply") from problem


def _not_a_record(path: Path, reason: str) -> UsageError:
    """The error for a file that is not a record, or an inconsistent one."""
    return UsageError(f"'{path}' is not a ddpbench record: {reason}", NOT_A_RECORD_HINT)


def _line_number(text: bytes, byte: int | None) -> int:
    return text.count(b"\n", 0, byte) + 1


class _WriterSoftware(msgspec.Struct):
    ddpbench: str = ""


class _WriterEnvironment(msgspec.Struct):
    software: _WriterSoftware = msgspec.field(default_factory=_WriterSoftware)


class _WriterRecord(msgspec.Struct):
    environment: _WriterEnvironment = msgspec.field(default_factory=_WriterEnvironment)


class _SchemaHeader(msgspec.Struct):
    """What every schema has."""

    schema: int
    records: list[_WriterRecord] = []

    @property
    def version(self) -> str:
        """The version of ddpbench that wrote the file; empty if unknown."""
        return self.records[0].environment.software.ddpbench if self.records else ""


MAX_PREVIOUS_FILES = 30
"""Maximum number of files to read, the newest by name. File names begin with the time."""


def job_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The paths that may be records: no profiler traces, no empty files that a run has only reserved, no dangling links."""
    return (path for path in paths if ".trace" not in path.suffixes and _has_content(path))


def previous_runs(folder: Path) -> list[Record]:
    """Every record in the newest job files of ``folder``, oldest first. Skips unreadable files."""
    records: list[Record] = []
    for path in sorted(job_files(folder.glob("*.json")))[-MAX_PREVIOUS_FILES:]:
        with suppress(UsageError):
            records += load(path).records
    return records


def _has_content(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def check_output_paths(output: OutputOptions) -> None:
    """Raises UsageError if results could not be written at the end."""
    if output.summary == "-":
        raise UsageError("--summary cannot be '-'", "give a file: --summary PATH")
    for flag, path in (("--json", output.json), ("--summary", output.summary)):
        if path not in (None, "-"):
            _check_target(Path(str(path)), flag, output.force)
    folder = Path(output.output_dir).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not _is_writable(existing):
        reason = "folder is not writable" if existing.is_dir() else f"'{os.path.relpath(existing)}' is a file"
        raise UsageError(f"cannot write results in '{output.output_dir}': {reason}", "choose another folder with -o DIR")


def _check_target(target: Path, flag: str, force: bool) -> None:
    if target.is_dir():
        raise UsageError(f"'{target}' is a folder", f"give a file name: {flag} PATH")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"folder '{target.parent}' of {flag} does not exist", "create it, or give another PATH")
    if target.exists() and not force:
        raise UsageError(f"'{target}' already exists", f"give another PATH for {flag}, or add --force")
    if not _is_writable(target.absolute().parent):
        raise UsageError(f"cannot write '{target}': not writable", f"give another PATH for {flag}")


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)
