"""Sentences about files that a diagnosed script must not change."""

from __future__ import annotations

from ddpbench.record.text import format_3sig

UNITS = ("bytes", "KB", "MB", "GB", "TB")


def size_text(size: float) -> str:
    """A size with its unit: ``5.2 GB``."""
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{format_3sig(size)} {UNITS[unit]}"


def copy_text(path: str, size: int) -> str:
    """A file of which a copy was made because the script opened it for writing."""
    return f"{path} ({size_text(size)}) is opened for writing: it was copied, and the copy is read from now on"
