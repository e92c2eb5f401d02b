"""Copies of files, made with functions that nothing replaces."""

from __future__ import annotations

import errno
import os
import posix
import shutil
import stat
from contextlib import suppress

COPIED_AT_ONCE = 1 << 22
"""Bytes of one system call."""


def require_room(scratch: str, name: str, size: int) -> None:
    """Raise OSError if a copy of a file would take more than half of the free space of the scratch folder."""
    if size > shutil.disk_usage(scratch).free / 2:
        raise OSError(errno.ENOSPC, "the scratch folder has no room for a copy of the file", name)


def copy_file_content(path: str, target: int) -> None:
    source = posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy_content(source, target)
    finally:
        posix.close(source)


def copy_content(source: int, target: int) -> None:
    """Copy a file, whatever the offset of its descriptor, to an empty one. Not every file system has faster system calls."""
    offset = 0
    while data := memoryview(posix.pread(source, COPIED_AT_ONCE, offset)):
        offset += len(data)
        while data:
            data = data[posix.write(target, data) :]


def copy_metadata(source: str, target: str, found: os.stat_result, with_times: bool) -> None:
    posix.chmod(target, stat.S_IMODE(found.st_mode))
    if with_times:
        with suppress(OSError):  # a file system without attributes, or one that only the system sets
            for name in posix.listxattr(source):
                posix.setxattr(target, name, posix.getxattr(source, name))
        posix.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
