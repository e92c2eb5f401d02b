"""Sentences about files that a diagnosed script must not change."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.record.text import format_3sig, pluralize

MAX_PATHS = 5
"""Paths that a line names."""

UNITS = ("bytes", "KB", "MB", "GB", "TB")

FIND = "find"
"""Action of a refusal that is none: native code does not find what the script has written."""

REFUSAL_HINT = "a diagnosis must not change files of the script; ddpbench watch runs it as it is"


def refusal_text(action: str, name: str) -> str:
    """What was refused to the script, denied by the kernel, or not found by native code."""
    if action == FIND:
        return f"the script has written {name}, which is in the scratch folder, where the library that reads it does not look"
    return f"refused to {action}: {name}"


def size_text(size: float) -> str:
    """A size with its unit: ``5.2 GB``."""
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{format_3sig(size)} {UNITS[unit]}"


def copy_text(path: str, size: int) -> str:
    """A file of which a copy was made because the script opened it for writing."""
    return f"{path} ({size_text(size)}) is opened for writing: it was copied, and the copy is read from now on"


def scratch_size_text(scratch: str, size: int) -> str:
    """A large scratch folder, which stays after the diagnosis."""
    return f"the scratch folder {scratch} takes {size_text(size)}; 'ddpbench env --clean' removes those of ended diagnoses"


def cleaned_text(removed: int, removed_bytes: int, failed: int, in_use: int) -> str:
    """What ``ddpbench env --clean`` did."""
    text = f"removed {pluralize(removed, 'scratch folder')} of ended diagnoses, {size_text(removed_bytes)}"
    if in_use:
        text += f"; {in_use} in use"
    return f"{text}; {failed} cannot be removed" if failed else text


def unprevented_text(script: str, paths: Sequence[str]) -> str:
    """Files that something else than Python code of the script has changed."""
    named = ", ".join(paths[:MAX_PATHS]) + (f" and {len(paths) - MAX_PATHS:,} more" if len(paths) > MAX_PATHS else "")
    return f"while {script} ran, a program that it started, or another process, has changed modes, times or shared memory: {named}"
