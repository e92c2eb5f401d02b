"""Atomic file writes and JSON encoding."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec


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
