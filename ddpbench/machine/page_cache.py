"""Page-cache residency and eviction of a file, and its file system."""

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
    """Bytes of the file in the page cache, from ``mincore``. Raises OSError.

    If the process neither owns the file nor may write it, Linux reports all of it as cached.
    """
    with _opened(path) as file:
        return _cached_bytes(file)


def evict(path: str) -> None:
    """Ask the kernel to drop the file's pages, after writing dirty ones to storage. Raises OSError.

    The kernel keeps pages that another process has mapped, and files of in-memory file systems.
    """
    with _opened(path) as file:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        with suppress(OSError):  # some file systems support neither call
            if _cached_bytes(file):  # dirty pages cannot be dropped
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
    """Type of the file system of ``path``, symlinks resolved: ``ext4``, ``nfs4``, ``tmpfs``, ``fuse.sshfs``; ``-`` if unknown."""
    real_path = os.path.realpath(path)
    kind, longest = "-", 0
    for mount in psutil.disk_partitions(all=True):
        mount_point = mount.mountpoint
        # a later mount on the same point hides an earlier one
        if len(mount_point) >= longest and Path(real_path).is_relative_to(mount_point):
            kind, longest = mount.fstype, len(mount_point)
    return kind
