"""How fast a node reads the files of a data set: out of the page cache, and from the storage itself."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from ddpbench.machine.file_reader import Reading, read
from ddpbench.machine.mounts import file_system
from ddpbench.machine.page_cache import evict, resident_bytes
from ddpbench.record.diagnosis import Storage

MOST_FILES, FIRST_PORTION = 4096, 32
MOST_THREADS, WARM_THREADS = 64, 4
"""Storage answers faster when asked for much at once; what lies in memory, more threads do not read faster from Python."""

COLD_SHARE = 0.7
"""Of the time that is left, what a portion's cold reads may take: the warm ones come after them."""

NEARLY_ALL = 0.9

IN_MEMORY, OWN_CACHE = {"tmpfs", "ramfs"}, {"zfs"}
"""File systems that can drop nothing, and those whose cache is not the kernel's, which tells nothing of it."""


def storage(path: str, files: Sequence[str], threads: int, budget_s: float) -> Storage:
    """The storage of the data set at ``path`` by a sample of its ``files``, the same in every run.

    ``threads`` read at once when cold: as many as the node has loader workers. Portion by portion until ``budget_s`` is over,
    the sample is dropped from the page cache, read, and read again; what was not there before is dropped once more.
    """
    end = perf_counter() + budget_s
    sample = random.Random(0).sample(files, min(MOST_FILES, len(files)))
    kinds = {file_system(file) for file in sample[:FIRST_PORTION]}
    threads = min(max(threads, 1), MOST_THREADS)
    seen, done, size, took_s = _Seen(), 0, FIRST_PORTION, 0.0
    with ThreadPoolExecutor(threads) as pool:
        while done < len(sample) and (not done or perf_counter() + 3 * took_s < end):
            began = perf_counter()
            seen += _look(sample[done : done + size], pool, threads, end)
            done, took_s = done + size, perf_counter() - began
            size = size * 2 if took_s < budget_s / 16 else size
    why = _why_not_cold(seen, kinds)
    return Storage(
        path=path,
        file_system=", ".join(sorted(kinds)),
        files=len(files),
        bytes_per_file=seen.bytes_per_file,
        resident=seen.before / seen.bytes if seen.bytes and (seen.told or kinds <= IN_MEMORY) and not kinds & OWN_CACHE else None,
        warm=seen.files_per_s(seen.warm) if seen.warm.fetched <= (1 - NEARLY_ALL) * seen.warm.bytes else None,
        cold=None if why else seen.files_per_s(seen.cold),
        cold_why=why,
        proved=not why and seen.proved,
    )


@dataclass(frozen=True)
class _Seen:
    """What was seen of some files."""

    files: int = 0
    bytes: int = 0
    before: int = 0  # bytes in the page cache as they were found
    after: int = 0  # and when they were to be dropped
    cold: Reading = field(default_factory=Reading)
    warm: Reading = field(default_factory=Reading)

    def __add__(self, other: _Seen) -> _Seen:
        return _Seen(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def bytes_per_file(self) -> float:
        return self.bytes / self.files if self.files else 0.0

    @property
    def told(self) -> bool:
        """Whether the kernel tells what lies in the page cache: it says "all" where it does not want to."""
        return min(self.before, self.after) < self.bytes

    @property
    def proved(self) -> bool:
        """Whether the cold reads were seen to come from the storage."""
        return self.cold.fetched >= NEARLY_ALL * self.cold.bytes

    def files_per_s(self, reading: Reading) -> float | None:
        return reading.bytes / reading.seconds / self.bytes_per_file if reading.bytes else None


def _look(files: Sequence[str], pool: ThreadPoolExecutor, threads: int, end: float) -> _Seen:
    """Files that were cut off by ``end``, or cannot be read at all, count for nothing in the rates."""
    sizes = {file: size for file in files if (size := _size(file))}
    before = {file: _resident(file, size) for file, size in sizes.items()}
    for file in sizes:
        _drop(file)
    after = sum(_resident(file, size) for file, size in sizes.items())
    now = perf_counter()
    cold = read([*sizes], pool, threads, now + COLD_SHARE * (end - now))
    whole = cold.bytes == sum(sizes.values())  # what was not read yet would make the warm reads cold ones
    warm = read([*sizes], pool, min(threads, WARM_THREADS), end) if whole else Reading()
    for file, bytes_there in before.items():
        if not bytes_there:
            _drop(file)
    return _Seen(len(sizes), sum(sizes.values()), sum(before.values()), after, cold, warm)


def _why_not_cold(seen: _Seen, kinds: set[str]) -> str:
    """Empty where the cold reads were such."""
    if kinds & IN_MEMORY:
        return f"{min(kinds & IN_MEMORY)} keeps its files in memory"
    if kinds & OWN_CACHE:
        return f"{min(kinds & OWN_CACHE)} keeps files in a cache of its own, which cannot be told to drop them"
    if not seen.cold.bytes:
        return "no file of the sample could be read in time" if seen.bytes else "no file of the sample can be read"
    if seen.proved or seen.after <= (1 - NEARLY_ALL) * seen.bytes:
        return ""
    if not seen.told:
        return "the files stayed in memory when they were to be dropped: another process holds them, or the kernel does not tell"
    return f"{seen.after / seen.bytes:.0%} of the sample stayed in memory when it was to be dropped: another process holds it"


def _size(file: str) -> int:
    """In bytes; 0 where it cannot be read."""
    try:
        return os.stat(file).st_size if os.access(file, os.R_OK) else 0
    except OSError:
        return 0


def _resident(file: str, size: int) -> int:
    try:
        return resident_bytes(file)
    except OSError:  # some file systems do not tell; then, as the kernel has it, all
        return size


def _drop(file: str) -> None:
    with suppress(OSError):  # it is gone meanwhile
        evict(file)
