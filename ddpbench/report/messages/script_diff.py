"""Sentences about the diff of a script: why there is none."""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.record.script_diff import EditObstacle, Part

NO_DIFF: Mapping[EditObstacle, str] = {
    "by-hand": "more is to do than lines of this script",
    "no-source": "a library makes the object, or a cell of a notebook",
    "no-name": "the model, or torch, is no variable where the line would be",
    "no-safe-place": "the call has arguments that are not written there, or is not a statement of its own",
    "source-changed": "the source has changed since the script began",
    "elsewhere": "the source is outside of the working directory",
}


def no_diff_text(obstacle: EditObstacle, missing: Part | None = None) -> str:
    """Why what is advised must be written by hand, or the ``missing`` part of it."""
    name = {"loader": "not of the DataLoader", "computing": "of the DataLoader alone", None: "none"}[missing]
    return f"{name}: {NO_DIFF[obstacle]}"
