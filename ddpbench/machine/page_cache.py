"""The page cache: how much of a file it holds, and evicting a file; its file system."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
MAP_FAILED = ctypes.c_void_p(-1).value


def cached_bytes(path: str) -> int:
    """Bytes of the file that lie in the page cache, by ``mincore``. Raises OSError.

    To a process that neither owns the file nor may write it, Linux says that all of it does.
    """
    with _opened(path) as file:
        return _cached_bytes(file)


def evict(path: str) -> None:
    """Asks the kernel to drop the file's pages, once they are written to the storage. Raises OSError.

    It keeps what another process has mapped, and all of a file that lies in memory alone.
    """
    with _opened(path) as file:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        with suppress(OSError):  # some file systems know neither call
            if _cached_bytes(file):  # a page that waits to be written cannot be dropped
                os.fdatasync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _cached_bytes(file: int) -> int:
    size = os.fstat(file).st_size
    if not size:
        return 0
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    if address == MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        if _libc.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return min(size, sum(page & 1 for page in pages.raw) * mmap.PAGESIZE)
    finally:
        _libc.munmap(address, size)


def file_system(path: str) -> str:
    """The type of the file system that ``path`` lies on, links followed: ``ext4``, ``nfs4``, ``tmpfs``, ``fuse.sshfs``; ``-`` if untold."""
    there = os.path.realpath(path)
    kind, longest = "-", 0
    for mount in psutil.disk_partitions(all=True):
        point = mount.mountpoint
        if len(point) >= longest and Path(there).is_relative_to(point):  # of two mounts on one point the later hides the other
            kind, longest = mount.fstype, len(point)
    return kind
