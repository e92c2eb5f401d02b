"""Read benchmark of a dataset's files, from the page cache and from storage."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from time import perf_counter

import psutil

from ddpbench.machine.page_cache import cached_bytes, evict, file_system
from ddpbench.record.diagnosis import NoColdRateReason, Storage

BLOCK_BYTES = 2**17


@dataclass(frozen=True)
class FileReadStats:
    """Bytes read, and bytes that the kernel fetched from storage for them; ``fetched_bytes`` is 0 if unknown."""

    num_bytes: int = 0
    elapsed_s: float = 0.0
    fetched_bytes: int = 0

    def __add__(self, other: FileReadStats) -> FileReadStats:
        return FileReadStats(self.num_bytes + other.num_bytes, self.elapsed_s + other.elapsed_s, self.fetched_bytes + other.fetched_bytes)


def read_files(files: Sequence[str], pool: ThreadPoolExecutor, threads: int, deadline: float) -> FileReadStats:
    """Read ``files`` with ``threads`` threads until ``deadline`` (``perf_counter``). Skips unreadable files."""
    fetched, began = _fetched_bytes(), perf_counter()
    remaining = iter(files)
    total = sum(pool.map(_read_until, repeat(remaining, threads), repeat(deadline)))
    return FileReadStats(total, perf_counter() - began, _fetched_bytes() - fetched)


def _read_until(files: Iterator[str], deadline: float) -> int:
    """Read the next file until none is left or ``deadline`` has passed; returns the bytes read by this thread."""
    block, total = bytearray(BLOCK_BYTES), 0
    for path in files:
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            while perf_counter() < deadline and (count := file.readinto(block)):
                total += count
        if perf_counter() >= deadline:
            break
    return total


def _fetched_bytes() -> int:
    """Bytes that the kernel has fetched from storage for this process so far; 0 if unknown."""
    try:
        return int(psutil.Process().io_counters().read_bytes)
    except (psutil.Error, RuntimeError):
        return 0


MAX_SAMPLE_FILES, FIRST_CHUNK_FILES = 4096, 32
MAX_THREADS, WARM_THREADS = 64, 4
"""Storage is faster with many concurrent reads. Reads from memory do not get faster with more Python threads."""

COLD_TIME_FRACTION = 0.7
"""Fraction of the remaining time that the cold reads of a chunk may take, to leave time for the warm reads after them."""

NEARLY_ALL = 0.9

IN_MEMORY_FILE_SYSTEMS, OWN_CACHE_FILE_SYSTEMS = {"tmpfs", "ramfs"}, {"zfs"}
"""File systems that cannot evict files, and those with their own cache, which the kernel does not report."""


def benchmark_storage(path: str, files: Sequence[str], threads: int, budget_s: float) -> Storage:
    """Benchmark the storage of the dataset at ``path`` on a sample of its ``files``, the same in every run.

    ``threads`` is the number of concurrent cold reads: one per loader worker of the node. Until ``budget_s`` is over, the
    sample is evicted from the page cache, read cold and read warm, chunk by chunk. Files that were not cached before are
    evicted again.
    """
    end = perf_counter() + budget_s
    sample = random.Random(0).sample(files, min(MAX_SAMPLE_FILES, len(files)))
    file_systems = {file_system(file) for file in sample[:FIRST_CHUNK_FILES]}
    threads = min(max(threads, 1), MAX_THREADS)
    measured, num_read, size, chunk_s = _StorageSample(), 0, FIRST_CHUNK_FILES, 0.0
    with ThreadPoolExecutor(threads) as pool:
        while num_read < len(sample) and (not num_read or perf_counter() + 3 * chunk_s < end):
            began = perf_counter()
            measured += _read_chunk(sample[num_read : num_read + size], pool, threads, end)
            num_read, chunk_s = num_read + size, perf_counter() - began
            size = size * 2 if chunk_s < budget_s / 16 else size
    no_cold_reason = _no_cold_rate_reason(measured, file_systems)
    return Storage(
        path=path,
        file_system=", ".join(sorted(file_systems)),
        num_files=len(files),
        bytes_per_file=measured.bytes_per_file,
        cached_fraction=measured.cached_before_bytes / measured.total_bytes
        if measured.total_bytes
        and (measured.mincore_is_reliable or file_systems <= IN_MEMORY_FILE_SYSTEMS)
        and not file_systems & OWN_CACHE_FILE_SYSTEMS
        else None,
        warm_files_per_s=measured.files_per_s(measured.warm)
        if measured.warm.fetched_bytes <= (1 - NEARLY_ALL) * measured.warm.num_bytes
        else None,
        cold_files_per_s=None if no_cold_reason else measured.files_per_s(measured.cold),
        no_cold_rate_reason=no_cold_reason,
        verified=not no_cold_reason and measured.verified,
        cached_after_fraction=measured.cached_after_bytes / measured.total_bytes if no_cold_reason == "not_evicted" else None,
    )


@dataclass(frozen=True)
class _StorageSample:
    """Measurements of one or more chunks of files."""

    num_files: int = 0
    total_bytes: int = 0
    cached_before_bytes: int = 0  # bytes in the page cache before eviction
    cached_after_bytes: int = 0  # and after it
    cold: FileReadStats = field(default_factory=FileReadStats)
    warm: FileReadStats = field(default_factory=FileReadStats)

    def __add__(self, other: _StorageSample) -> _StorageSample:
        return _StorageSample(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def bytes_per_file(self) -> float:
        return self.total_bytes / self.num_files if self.num_files else 0.0

    @property
    def mincore_is_reliable(self) -> bool:
        """Whether ``mincore`` reports residency: without permission it reports every page as cached."""
        return min(self.cached_before_bytes, self.cached_after_bytes) < self.total_bytes

    @property
    def verified(self) -> bool:
        """Whether the kernel's I/O counters confirm that the cold reads came from storage."""
        return self.cold.fetched_bytes >= NEARLY_ALL * self.cold.num_bytes

    def files_per_s(self, reading: FileReadStats) -> float | None:
        return reading.num_bytes / reading.elapsed_s / self.bytes_per_file if reading.num_bytes else None


def _read_chunk(files: Sequence[str], pool: ThreadPoolExecutor, threads: int, deadline: float) -> _StorageSample:
    """Evict ``files``, read them cold, then warm. Files cut off by ``deadline`` and unreadable files do not affect the rates."""
    sizes = {file: size for file in files if (size := _readable_size(file))}
    cached = {file: _cached_bytes(file, size) for file, size in sizes.items()}
    for file in sizes:
        _try_evict(file)
    cached_after = sum(_cached_bytes(file, size) for file, size in sizes.items())
    now = perf_counter()
    cold = read_files([*sizes], pool, threads, now + COLD_TIME_FRACTION * (deadline - now))
    is_complete = cold.num_bytes == sum(sizes.values())  # files that were not read yet would be cold in the warm reads
    warm = read_files([*sizes], pool, min(threads, WARM_THREADS), deadline) if is_complete else FileReadStats()
    for file, cached_before in cached.items():
        if not cached_before:
            _try_evict(file)
    return _StorageSample(len(sizes), sum(sizes.values()), sum(cached.values()), cached_after, cold, warm)


def _no_cold_rate_reason(seen: _StorageSample, kinds: set[str]) -> NoColdRateReason | None:
    """Why there is no cold rate; None if the reads were cold."""
    if kinds & IN_MEMORY_FILE_SYSTEMS:
        return "in_memory"
    if kinds & OWN_CACHE_FILE_SYSTEMS:
        return "own_cache"
    if not seen.cold.num_bytes:
        return "no_time" if seen.total_bytes else "unreadable"
    if seen.verified or seen.cached_after_bytes <= (1 - NEARLY_ALL) * seen.total_bytes:
        return None
    return "not_evicted" if seen.mincore_is_reliable else "unknown_residency"


def _readable_size(file: str) -> int:
    """Size of ``file`` in bytes; 0 if it cannot be read."""
    try:
        return os.stat(file).st_size if os.access(file, os.R_OK) else 0
    except OSError:
        return 0


def _cached_bytes(file: str, size: int) -> int:
    try:
        return cached_bytes(file)
    except OSError:  # not supported by some file systems: assume all, as the kernel does
        return size


def _try_evict(file: str) -> None:
    with suppress(OSError):  # the file is gone
        evict(file)
