"""What a diagnosis prints while it measures: what it does, which round, and how long it takes at most."""

from __future__ import annotations

from collections.abc import Callable
from threading import Timer
from time import monotonic

from ddpbench.script.diagnose.stage import Stage

EVERY_S = 10.0
"""Seconds from one line to the next about the same: a trial may take longer."""

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
    """Prints a line with ``print_line`` when something else begins, and every ``every_s`` seconds. All ends at ``end_s``."""

    def __init__(self, print_line: Callable[[str], None], end_s: float, every_s: float = EVERY_S) -> None:
        self._print_line, self._end_s, self._every_s = print_line, end_s, every_s
        self._name, self._round_text = "", ""
        self._timer = Timer(every_s, self._print)

    def show(self, stage: Stage, round_text: str = "") -> None:
        """``stage`` begins, in the round ``round_text``: ``2 of 8``."""
        if stage.kind == "end":
            return self.stop()
        if name := stage_name(stage):
            is_other, self._name, self._round_text = name != self._name, name, round_text
            if is_other:
                self._print()

    def stop(self) -> None:
        """Print no further line."""
        self._name = ""
        self._timer.cancel()

    def _print(self) -> None:
        self._timer.cancel()
        name, left_s = self._name, self._end_s - monotonic()
        if not name:
            return
        parts = [name, f"round {self._round_text}" if self._round_text else "", f"at most {left_s:.0f} s left" if left_s >= 1 else ""]
        self._print_line(f"ddpbench: {', '.join(filter(None, parts))}")
        self._timer = Timer(self._every_s, self._print)
        self._timer.daemon = True
        self._timer.start()


def stage_name(stage: Stage) -> str:
    """What ``stage`` does; empty if it takes no time."""
    if stage.kind != "window":
        return NAMES.get(stage.kind, "")
    if stage.screened:
        return f"trying {stage.screened}"
    if stage.from_snapshot:
        return "comparing losses with and without what gained"
    if stage.is_profiled:
        return "kernel times"
    return "trials" if stage.role and stage.role.kind in ("baseline_repeat", "trial") else "control runs"
