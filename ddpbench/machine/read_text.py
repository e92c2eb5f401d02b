"""Reads small text files of the kernel, such as those in /proc and /sys."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """The stripped text of ``path``; empty if it is missing or not readable."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
