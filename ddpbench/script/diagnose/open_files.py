"""Finds the open files of a dataset: forked workers share each of them, and its position, with the process that opened it.

Archives, HDF5 files, databases and connections count as files. Arrays, tensors, tokenizers and read-only memory maps hold none.
"""

from __future__ import annotations

import io
import mmap
import os
import socket
import sqlite3
import stat
import sys
import tarfile
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddpbench.record.script import HandleKind
from ddpbench.script.diagnose.descriptors import is_readable
from ddpbench.script.diagnose.object_parts import Link, is_leaf, is_opaque, is_truncated, parts

MAX_OBJECTS, MAX_DEPTH = 20_000, 8
"""Where a search ends: an object further away than this from its dataset is not seen."""

HDF5_PACKAGES = ("h5py", "tables", "netCDF4")


@dataclass(frozen=True)
class OpenFile:
    """An open file, and the attributes and items that lead to it from the dataset. Of an opaque object, ``kind`` is None."""

    kind: HandleKind | None
    links: tuple[Link, ...]

    @property
    def name(self) -> str:
        """``Records.file``: the class of the dataset, and the attributes."""
        return self.links[-1].name


@dataclass
class Search:
    """What a search of a dataset has found and seen."""

    files: list[OpenFile] = field(default_factory=list)
    opaque: list[OpenFile] = field(default_factory=list)  # objects that may have opened a file, or not
    names: set[str] = field(default_factory=set)  # of all attributes and items
    unset: set[str] = field(default_factory=set)  # those that were None
    truncated: set[str] = field(default_factory=set)  # containers of which only some items were seen


def find_open_files(*roots: Any) -> Search:
    """Search ``roots``, such as a dataset, and what they hold. Reads no file, and calls no property of the user's classes."""
    found = Search()
    waiting: deque[tuple[Link, ...]] = deque((Link(getattr(root, "__qualname__", type(root).__name__), root),) for root in roots)
    seen = {id(root): root for root in roots}  # kept alive: an identifier may be used again
    while waiting and len(seen) < MAX_OBJECTS:
        links = waiting.popleft()
        link = links[-1]
        kind = _kind(link.value)
        if kind is not None:
            found.files.append(OpenFile(kind, links))
            continue
        if is_opaque(link.value):
            found.opaque.append(OpenFile(None, links))
        if len(links) > MAX_DEPTH:
            continue
        if is_truncated(link.value):
            found.truncated.add(link.name)
        for part in _parts(link):
            found.names.add(part.name)
            if part.value is None:
                found.unset.add(part.name)
            if id(part.value) not in seen and not is_leaf(part.value):
                seen[id(part.value)] = part.value
                waiting.append((*links, part))
    return found


def _parts(link: Link) -> Iterable[Link]:
    """The parts of an object; none of one whose class raises an error."""
    found: list[Link] = []
    with suppress(Exception):
        found.extend(parts(link))
    return found


def _kind(value: Any) -> HandleKind | None:
    """What kind of open file ``value`` is; None if it is none, or closed."""
    try:
        return _kind_of_handle(value)
    except Exception:  # of a library, for a closed file
        return None


def _kind_of_handle(value: Any) -> HandleKind | None:
    package = type(value).__module__.partition(".")[0]
    match value:
        case zipfile.ZipFile():
            return "archive" if value.fp is not None and any(_open_kinds(value.fp)) else None
        case tarfile.TarFile():
            return "archive" if not getattr(value, "closed", False) and any(_open_kinds(value.fileobj)) else None
        case socket.socket():
            return "socket" if value.fileno() >= 0 else None
        case mmap.mmap():
            return "memory-map" if _is_writable(value) else None
        case np.ndarray():
            return "memory-map" if _maps_writable(value) else None
        case sqlite3.Connection():
            return "database" if any(path for _, _, path in value.execute("PRAGMA database_list")) else None
        case sqlite3.Cursor():
            return _kind_of_handle(value.connection)
        case io.IOBase():
            return next(_open_kinds(value), None)
    if package in HDF5_PACKAGES and type(value).__name__ in ("File", "Group", "Dataset"):
        return "hdf5" if getattr(value, "isopen", bool(value)) else None
    if isinstance(value, _lmdb_classes()):
        return "database"
    return next(_open_kinds(value), None) if callable(getattr(type(value), "fileno", None)) else None


def _lmdb_classes() -> tuple[type, ...]:
    """Classes of LMDB, whose environments must not be used after a fork; their modules have no name that shows it."""
    lmdb = sys.modules.get("lmdb")
    return (lmdb.Environment, lmdb.Transaction, lmdb.Cursor) if lmdb else ()


def _open_kinds(value: Any) -> Iterator[HandleKind]:
    """The kind of the descriptor from which ``value`` reads; nothing if it only writes, or reads from memory."""
    try:
        descriptor = value.fileno()
        mode = os.fstat(descriptor).st_mode
        is_read = is_readable(descriptor)
    except (AttributeError, OSError, ValueError):  # of one in memory, or closed
        inner = getattr(value, "fileobj", None) or getattr(value, "_fp", None)
        if inner is not None and inner is not value:
            yield from _open_kinds(inner)
        return
    if stat.S_ISSOCK(mode):
        yield "socket"
    elif is_read and (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISBLK(mode)):
        yield "file"


def _is_writable(value: mmap.mmap) -> bool:
    """Whether what one process writes into the map is seen by others. Its position is not shared.

    One that the protection of files has made private counts as soon as it is written.
    """
    if getattr(value, "is_unwritten", False):
        return False
    with memoryview(value) as view:
        return not view.readonly and "ACCESS_COPY" not in repr(value)


def _maps_writable(array: np.ndarray[Any, Any]) -> bool:
    """Whether ``array`` is, or is a view of, a memory map in which workers would see what others write."""
    base: Any = array
    while base is not None:
        if isinstance(base, mmap.mmap):
            return _is_writable(base)
        base = getattr(base, "base", None)
    return False
