"""Reasons for a missing cold-read rate."""

from __future__ import annotations

from ddpbench.record.diagnosis import NoColdRateReason, Storage

NO_COLD_RATE_REASONS: dict[NoColdRateReason, str] = {
    "in_memory": "{file_system} keeps files in memory",
    "own_cache": "{file_system} has a separate cache that cannot be dropped",
    "no_time": "no sampled file was read in time",
    "unreadable": "no sampled file is readable",
    "not_evicted": "{fraction:.0%} of the sample stayed in the page cache: another process keeps it there",
    "unknown_residency": "page cache not dropped: another process keeps the files, or the kernel hides residency",
}


def no_cold_rate_reason(storage: Storage) -> str:
    if storage.no_cold_rate_reason is None:
        return ""
    return NO_COLD_RATE_REASONS[storage.no_cold_rate_reason].format(
        file_system=storage.file_system, fraction=storage.cached_after_fraction or 0.0
    )
