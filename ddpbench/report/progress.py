"""Someone who listens to a run: a moving bar on a terminal, a plain line a round in a log."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console

from ddpbench.record.progress import Progress
from ddpbench.record.words import printable
from ddpbench.report.bar import can_move, make_bar, start
from ddpbench.report.console import make_console, say


def listener(stream: TextIO | None, width: int | None = None) -> Progress:
    """A listener that writes to ``stream``: a bar where that is a terminal, else lines. ``width`` as in ``make_console``."""
    console = make_console(stream, width)
    return MovingBar(console) if can_move(console) else PlainLines(console)


class PlainLines:
    """A line a stage and a line a round, each flushed at once, so that a log shows that the run moves."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def stage(self, text: str) -> None:
        self._say(text)

    def round_done(self, done: int, total: int, text: str, seconds_left: float | None) -> None:
        self._say(", ".join(filter(None, [f"round {done} of {total}: {text}", time_left(seconds_left)])))

    def close(self) -> None:
        self._console.file.flush()

    def _say(self, text: str) -> None:
        say(self._console, f"ddpbench: {text}")
        self._console.file.flush()


class MovingBar:
    """One line at the foot of the terminal, gone when the run ends; what is said on stderr meanwhile stands above it."""

    def __init__(self, console: Console) -> None:
        self._bar = make_bar(console, fill=True)
        self._task = self._bar.add_task("", total=1)
        start(self._bar)

    def stage(self, text: str) -> None:
        self._bar.update(self._task, description=printable(text), refresh=True)

    def round_done(self, done: int, total: int, text: str, seconds_left: float | None) -> None:
        words = ", ".join(filter(None, [f"{done} of {total} rounds", text, time_left(seconds_left)]))
        self._bar.update(self._task, completed=done, total=total, description=printable(words), refresh=True)

    def close(self) -> None:
        self._bar.stop()


def time_left(seconds: float | None) -> str:
    """``about 9 s left``, ``about 3 min left``; empty where nobody knows, or nothing is left."""
    if not seconds or seconds < 0.5:
        return ""
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"
