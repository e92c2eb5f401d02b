"""Which pages of a private memory map were written."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from ddpbench.script.protect import update_maps


def test_both_ways_to_find_written_pages_agree(tmp_path: Path) -> None:
    page, size = mmap.PAGESIZE, 3 * update_maps.CHUNK_PAGES * mmap.PAGESIZE + 100
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(size)
    with (tmp_path / "sparse").open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | update_maps.NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        assert list(update_maps.written_pages(start, size)) == []
        written = [0, 5, 6, *range(1000, 3000, 2), update_maps.CHUNK_PAGES - 1, update_maps.CHUNK_PAGES, size // page]
        for number in written:
            pages[number * page] = 1
        assert pages[7 * page] == 0, "a page that is only read"
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            read = list(update_maps._read_pages(pagemap, start, size))
        found = list(update_maps.written_pages(start, size))
        for groups in (read, found):
            assert sorted({number for first, stop in groups for number in range(first // page, -(-stop // page))}) == written
            assert groups[-1][1] == size
