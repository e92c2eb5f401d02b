"""What the kernel tells in small text files."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """The stripped text of ``path``; empty where it is not there, or not told to this process."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
