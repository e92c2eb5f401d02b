"""What a diagnosis prints while it measures: what it does, which round, and how long it takes at most."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from ddpbench.script.diagnose.stage import Stage

EVERY_S = 10.0
"""Seconds from one line to the next about the same."""

NAMES = {
    "benchmark": "loader alone",
    "copies": "copies to the GPU",
    "decoding": "decoding on the GPU",
    "storage": "storage",
    "samples": "samples of other workers",
    "watch": "watching",
}
"""Names of the stages besides windows. Others take no time."""


class ProgressLines:
    """Prints a line with ``print_line`` when something else begins, and every ``EVERY_S`` seconds. All ends at ``end_s``."""

    def __init__(self, print_line: Callable[[str], None], end_s: float) -> None:
        self._print_line, self._end_s = print_line, end_s
        self._name, self._due_s = "", 0.0

    def show(self, stage: Stage, round_text: str = "") -> None:
        """``stage`` begins, in the round ``round_text``: ``2 of 8``."""
        name, now_s = stage_name(stage), monotonic()
        if not name or (name == self._name and now_s < self._due_s):
            return
        self._name, self._due_s = name, now_s + EVERY_S
        left_s = self._end_s - now_s
        parts = [name, f"round {round_text}" if round_text else "", f"at most {left_s:.0f} s left" if left_s >= 1 else ""]
        self._print_line(f"ddpbench: {', '.join(filter(None, parts))}")


def stage_name(stage: Stage) -> str:
    """What ``stage`` does; empty if it takes no time."""
    if stage.kind != "window":
        return NAMES.get(stage.kind, "")
    if stage.is_profiled:
        return "kernel times"
    return "trials" if stage.role and stage.role.kind in ("baseline_repeat", "trial") else "control runs"
