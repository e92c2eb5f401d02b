"""Reading whole files with several threads, against the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter

import psutil

BLOCK = 2**17


@dataclass(frozen=True)
class Reading:
    """What was read, and what of it the kernel had to fetch for this process; ``fetched`` is 0 where it does not tell."""

    bytes: int = 0
    seconds: float = 0.0
    fetched: int = 0

    def __add__(self, other: Reading) -> Reading:
        return Reading(self.bytes + other.bytes, self.seconds + other.seconds, self.fetched + other.fetched)


def read(files: Sequence[str], pool: ThreadPoolExecutor, threads: int, until: float) -> Reading:
    """Reads ``files``, each thread the next one left, and stops at ``until`` by ``perf_counter``. Skips what cannot be read."""
    fetched, began = _fetched(), perf_counter()
    left = iter(files)
    total = sum(pool.map(_read, repeat(left, threads), repeat(until)))
    return Reading(total, perf_counter() - began, _fetched() - fetched)


def _read(files: Iterator[str], until: float) -> int:
    """Bytes read of those files that this thread takes."""
    block, total = bytearray(BLOCK), 0
    for path in files:
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            while perf_counter() < until and (count := file.readinto(block)):
                total += count
        if perf_counter() >= until:
            break
    return total


def _fetched() -> int:
    """Bytes that the kernel has so far fetched from storage because a thread of this process wanted them."""
    try:
        return int(psutil.Process().io_counters().read_bytes)
    except (psutil.Error, RuntimeError):
        return 0
