"""Checks where results go before anything is measured. Torch-free: a launcher checks it, too."""

from __future__ import annotations

import os
from pathlib import Path

from ddpbench.record.errors import UsageError
from ddpbench.record.request import OutputOptions


def check_output_paths(output: OutputOptions) -> None:
    """Raises UsageError if results could not be written at the end."""
    target = None if output.json in (None, "-") else Path(str(output.json))
    if target and target.is_dir():
        raise UsageError(f"'{target}' is a folder", "name a file: --json PATH")
    if target and not target.absolute().parent.is_dir():
        raise UsageError(f"there is no folder '{target.parent}' for --json", "make it, or name another PATH")
    if target and target.exists() and not output.force:
        raise UsageError(f"'{target}' exists", "another PATH for --json, or --force")
    if target and not _is_writable(target.absolute().parent):
        raise UsageError(f"cannot write '{target}'", "another PATH for --json")
    folder = Path(output.output_dir).absolute()
    ground = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not _is_writable(ground):
        why = "may not write there" if ground.is_dir() else f"'{os.path.relpath(ground)}' is a file"
        raise UsageError(f"cannot write results in '{output.output_dir}': {why}", "choose another folder with -o DIR")


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)
