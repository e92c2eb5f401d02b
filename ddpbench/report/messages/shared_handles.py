"""Sentences about what a dataset has open when its workers are forked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ddpbench.record.script import HandleKind, SharedHandle

NOUNS: Mapping[HandleKind, str] = {
    "file": "file",
    "archive": "archive",
    "hdf5": "HDF5 file",
    "database": "database",
    "socket": "connection",
    "memory-map": "writable memory map",
    "descriptor": "file",
}


def shared_text(handles: Sequence[SharedHandle]) -> str:
    """``forked workers would share the file Records.file, which is open before they start``."""
    verb = "is" if len(handles) == 1 else "are"
    return f"forked workers would share {handle_names(handles)}, which {verb} open before they start"


def handle_names(handles: Sequence[SharedHandle]) -> str:
    """``the file Records.file and the archive Records.images``."""
    return " and ".join(f"the {NOUNS[each.kind]} {_name(each)}" for each in handles)


def open_text(handles: Sequence[SharedHandle]) -> str:
    """``open Records.file in each worker``; empty without ``handles``."""
    parts = []
    if opened := [_name(each) for each in handles if each.kind != "memory-map"]:
        parts.append(f"open {' and '.join(opened)} in each worker")
    if maps := [each.name for each in handles if each.kind == "memory-map"]:
        parts.append(f"open {' and '.join(maps)} read-only")
    return ", ".join(parts)


def _name(handle: SharedHandle) -> str:
    """``Records.file``, or ``records.bin of Records`` if no attribute shows what has it open."""
    return f"{os.path.basename(handle.path)} of {handle.name}" if handle.path else handle.name
