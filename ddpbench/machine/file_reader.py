"""Reading whole files with several threads, against the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter

import psutil

BLOCK_BYTES = 2**17


@dataclass(frozen=True)
class FileReadStats:
    """What was read, and what of it the kernel had to fetch for this process; ``fetched`` is 0 where it does not tell."""

    num_bytes: int = 0
    elapsed_s: float = 0.0
    fetched_bytes: int = 0

    def __add__(self, other: FileReadStats) -> FileReadStats:
        return FileReadStats(self.num_bytes + other.num_bytes, self.elapsed_s + other.elapsed_s, self.fetched_bytes + other.fetched_bytes)


def read_files(files: Sequence[str], pool: ThreadPoolExecutor, threads: int, deadline: float) -> FileReadStats:
    """Reads ``files``, each thread the next one left, and stops at ``deadline`` by ``perf_counter``. Skips what cannot be read."""
    fetched, began = _fetched_bytes(), perf_counter()
    left = iter(files)
    total = sum(pool.map(_read_until, repeat(left, threads), repeat(deadline)))
    return FileReadStats(total, perf_counter() - began, _fetched_bytes() - fetched)


def _read_until(files: Iterator[str], deadline: float) -> int:
    """Bytes read of those files that this thread takes."""
    block, total = bytearray(BLOCK_BYTES), 0
    for path in files:
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            while perf_counter() < deadline and (count := file.readinto(block)):
                total += count
        if perf_counter() >= deadline:
            break
    return total


def _fetched_bytes() -> int:
    """Bytes that the kernel has so far fetched from storage because a thread of this process wanted them."""
    try:
        return int(psutil.Process().io_counters().read_bytes)
    except (psutil.Error, RuntimeError):
        return 0
