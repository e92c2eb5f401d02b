"""Why there is no rate of cold reads."""

from __future__ import annotations

from ddpbench.record.diagnosis import NoColdRateReason, Storage

NO_COLD_RATE_REASONS: dict[NoColdRateReason, str] = {
    "in_memory": "{file_system} keeps its files in memory",
    "own_cache": "{file_system} keeps files in a cache of its own, which cannot be told to drop them",
    "no_time": "no file of the sample could be read in time",
    "unreadable": "no file of the sample can be read",
    "not_evicted": "{fraction:.0%} of the sample stayed in memory when it was to be dropped: another process holds it",
    "unknown_residency": "the files stayed in memory when they were to be dropped: another process holds them, or the kernel does not tell",
}


def no_cold_rate_reason(storage: Storage) -> str:
    if storage.no_cold_rate_reason is None:
        return ""
    return NO_COLD_RATE_REASONS[storage.no_cold_rate_reason].format(
        file_system=storage.file_system, fraction=storage.cached_after_fraction or 0.0
    )
