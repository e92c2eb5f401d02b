"""Memory maps of files that are open for update: private ones of the user's file, until what was written is wanted elsewhere.

The kernel copies each page of a private map at its first write, so that the user's file never changes, and pages that are only read are
those of the page cache. When the map is flushed or closed, when its file is opened again, and before the process forks, the written pages
go into a copy of the file, which takes the place of the file in the map.
"""

from __future__ import annotations

import _io
import ctypes
import fcntl
import mmap
import os
import posix
import re
from collections.abc import Callable, Iterator
from typing import Any

from ddpbench.script.protect.updates import Updates, segment_path

PRESENT, SWAPPED, OF_FILE = 0x80, 0x40, 0x20
"""Bits in the highest byte of a page's entry in /proc/self/pagemap. A private page that was written is no longer one of the file."""

WRITTEN = re.compile(
    b"[%s]+" % re.escape(bytes(flags for flags in range(256) if flags & (PRESENT | SWAPPED) and not flags & OF_FILE)), re.S
)

PAGEMAP_SCAN, REGIONS = 0xC0606610, 512
SCANNED = (1 << 2, 1 << 2, 1 << 3 | 1 << 4, 1 << 3)
"""Pages not of the file, present or swapped: category_inverted, category_mask, category_anyof_mask and return_mask."""

NO_RESERVE = 0x4000
"""MAP_NORESERVE: a private map of a file larger than the memory is none too many."""

FIXED = 0x10
CHANGED, COMPARED_BYTES = re.compile(b"[^\0]+"), 1 << 16
CHUNK_PAGES = 1 << 16
FAILED = ctypes.c_void_p(-1).value


class ScanRequest(ctypes.Structure):
    """``struct pm_scan_arg`` of the kernel."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages", "inverted", "mask", "anyof", "returned")
    )


def update_map_class(updates: Updates, copy: Callable[[str], object], is_own: Callable[[], bool]) -> type:
    """The class in place of ``mmap.mmap``. ``copy`` copies the file of a key, unless it was, and returns the path of the copy."""
    can_look = posix.access("/proc/self/pagemap", os.R_OK)
    system_map = mmap.mmap

    class AnyMap(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, system_map) if cls is UpdateMap else super().__instancecheck__(value)

    class UpdateMap(system_map, metaclass=AnyMap):  # type: ignore[misc,valid-type]
        _key, _offset = "", 0

        def __new__(
            cls,
            fileno: int,
            length: int,
            flags: int = mmap.MAP_SHARED,
            prot: int = mmap.PROT_READ | mmap.PROT_WRITE,
            access: int = mmap.ACCESS_DEFAULT,
            offset: int = 0,
            **options: Any,
        ) -> Any:
            writes = access == mmap.ACCESS_WRITE or (access == mmap.ACCESS_DEFAULT and flags & mmap.MAP_SHARED and prot & mmap.PROT_WRITE)
            file = updates.file_of(fileno) if updates and writes and not is_own() else None
            if file is not None and not can_look:
                file.begin_writing()
                file = None
            key = file.key if file is not None else segment_path(fileno, updates.segments) if writes else ""
            if not key:
                return super().__new__(cls, fileno, length, flags, prot, access, offset, **options)
            prot = mmap.PROT_READ | mmap.PROT_WRITE
            new = super().__new__(cls, fileno, length, mmap.MAP_PRIVATE | NO_RESERVE, prot, mmap.ACCESS_DEFAULT, offset, **options)
            new._key, new._offset = key, offset
            updates.add(key, new)
            return new

        def flush(self, *arguments: int) -> None:
            self._write_back()
            super().flush(*arguments)

        def close(self) -> None:
            self._write_back()
            super().close()

        def __exit__(self, *_: object) -> None:
            self.close()

        def __del__(self) -> None:
            self._write_back()

        @property
        def is_unwritten(self) -> bool:
            """Whether this is a map of the user's file for update that has only been read so far."""
            return bool(self._key) and not self.has_written()

        def _write_back(self) -> None:
            if self._key and self.has_written():
                copy(self._key)

        # as an Update

        def follow(self, upper: str) -> None:
            descriptor, source = posix.open(upper, os.O_RDWR | os.O_CLOEXEC), posix.open(self._key, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._key = ""
                start, length = self._address(), len(self)
                for first, stop in written_pages(start, length):
                    with memoryview(self) as view:
                        write_differences(descriptor, source, view[first:stop], self._offset + first)
                if posix.fstat(descriptor).st_size >= self._offset + length:
                    map_again(start, length, descriptor, self._offset)
            finally:
                posix.close(source)
                posix.close(descriptor)

        def detach(self) -> None:
            self._key = ""

        def has_written(self) -> bool:
            return not self.closed and any(written_pages(self._address(), len(self)))

        def _address(self) -> int:
            return ctypes.addressof(ctypes.c_char.from_buffer(self))

    UpdateMap.__name__ = UpdateMap.__qualname__ = "mmap"
    return UpdateMap


def written_pages(start: int, length: int) -> Iterator[tuple[int, int]]:
    """First and last byte, from ``start`` on, of each group of pages of a private map that were written."""
    with _io.open("/proc/self/pagemap", "rb", buffering=0) as file:
        try:
            yield from _scan_pages(file.fileno(), start, length)
        except OSError:  # before Linux 6.7
            yield from _read_pages(file, start, length)


def _scan_pages(descriptor: int, start: int, length: int) -> Iterator[tuple[int, int]]:
    """The kernel looks for them: a map of many gigabytes takes no longer than the pages in use."""
    stop = start + -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
    regions = (ctypes.c_uint64 * (3 * REGIONS))()
    request = ScanRequest(ctypes.sizeof(ScanRequest), 0, start, stop, start, ctypes.addressof(regions), REGIONS, 0, *SCANNED)
    while request.walk_end < stop:
        request.start = request.walk_end
        for number in range(fcntl.ioctl(descriptor, PAGEMAP_SCAN, request)):
            first, last = regions[3 * number], regions[3 * number + 1]
            yield first - start, min(last - start, length)


def _read_pages(file: Any, start: int, length: int) -> Iterator[tuple[int, int]]:
    page, pages = mmap.PAGESIZE, -(-length // mmap.PAGESIZE)
    for begin in range(0, pages, CHUNK_PAGES):
        file.seek((start // page + begin) * 8)
        entries = file.read(8 * min(CHUNK_PAGES, pages - begin)) or b""
        for group in WRITTEN.finditer(entries[7::8]):  # the highest byte of each entry
            yield (begin + group.start()) * page, min((begin + group.end()) * page, length)


def write_differences(descriptor: int, source: int, data: memoryview, offset: int) -> None:
    """Write the bytes that differ from those of another file: another process may have written others of the same page."""
    for first in range(0, len(data), COMPARED_BYTES):
        new = bytes(data[first : first + COMPARED_BYTES])
        old = posix.pread(source, len(new), offset + first).ljust(len(new), b"\0")
        if new != old:
            difference = (int.from_bytes(new, "little") ^ int.from_bytes(old, "little")).to_bytes(len(new), "little")
            for group in CHANGED.finditer(difference):
                posix.pwrite(descriptor, new[group.start() : group.end()], offset + first + group.start())


def map_again(start: int, length: int, descriptor: int, offset: int) -> None:
    """Put a shared map of another file in the place of a map. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    flags = mmap.MAP_SHARED | FIXED
    if libc.mmap(start, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, offset) == FAILED:
        raise OSError(ctypes.get_errno(), "cannot map the copy of the file")
