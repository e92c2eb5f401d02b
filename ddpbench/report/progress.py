"""Progress display: a bar at the bottom of a terminal, plain lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from ddpbench.record.text import printable
from ddpbench.report.console import make_console, print_line


class Progress(Protocol):
    """Receives progress of a run. Every rank but 0 has a NullProgress."""

    def stage(self, text: str) -> None:
        """A slow stage begins: building, warm-up, a peak measurement, another epoch of a long round."""

    def round_done(self, done: int, total: int, text: str, time_left: str) -> None:
        """A timed round ended. ``text`` is its throughput as text, ``time_left`` that of the whole job, or empty."""

    def close(self) -> None:
        """Stop reporting and restore the terminal."""


class NullProgress:
    """A Progress that reports nothing."""

    def stage(self, text: str) -> None: ...

    def round_done(self, done: int, total: int, text: str, time_left: str) -> None: ...

    def close(self) -> None: ...


LOG_INTERVAL_S = 5.0
"""Seconds between two log lines of a counted progress."""


def make_progress(stream: TextIO | None) -> Progress:
    """A progress display on ``stream``: a bar if it is a terminal, else lines."""
    return _bar_or_log(make_console(stream))


@contextmanager
def count_progress(
    stream: TextIO | None, what: str, total: int, items: str, every_s: float = LOG_INTERVAL_S
) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many of ``total`` are done; call it with 0 first.

    ``stream`` shows nothing before that call.
    """
    console = make_console(stream)
    shown: BarProgress | LogProgress | None = None
    started_s = logged_s = 0.0

    def show(done: int) -> None:
        nonlocal shown, started_s, logged_s
        now = monotonic()
        if shown is None:
            LogProgress(console).stage(what)
            shown, started_s, logged_s = _bar_or_log(console), now, now
        left_s = (now - started_s) / done * (total - done) if done else None
        text = _listed(f"{done:,} of {total:,} {items}", format_time_left(left_s))
        if isinstance(shown, BarProgress):
            shown.move(done, total, text)
        elif now - logged_s >= every_s:
            logged_s = now
            shown.stage(text)

    try:
        yield show
    finally:
        if shown is not None:
            shown.close()


class LogProgress:
    """One line per stage and round, flushed at once so that a log shows progress."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def stage(self, text: str) -> None:
        print_line(self._console, f"ddpbench: {text}")
        self._console.file.flush()

    def round_done(self, done: int, total: int, text: str, time_left: str) -> None:
        self.stage(_listed(f"round {done} of {total}: {text}", time_left))

    def close(self) -> None: ...


class BarProgress:
    """A bar at the bottom of the terminal, removed at the end.

    Text on stderr appears above it. No thread redraws it: that would take the GIL from the measured work.
    """

    def __init__(self, console: Console) -> None:
        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="crop", ratio=1))
        bar = BarColumn(bar_width=console.width // 5)
        self._bar = Bar(bar, text, console=console, auto_refresh=False, transient=True, redirect_stdout=False, expand=True)
        self._task = self._bar.add_task("", total=1)
        self._bar.start()
        console.show_cursor(True)  # a killed process could not restore it

    def stage(self, text: str) -> None:
        self._bar.update(self._task, description=printable(text), refresh=True)

    def round_done(self, done: int, total: int, text: str, time_left: str) -> None:
        self.move(done, total, _listed(f"{done} of {total} rounds", text, time_left))

    def move(self, done: int, total: int, text: str) -> None:
        self._bar.update(self._task, completed=done, total=total, description=printable(text), refresh=True)

    def close(self) -> None:
        self._bar.stop()


def format_time_left(seconds: float | None, is_limit: bool = False) -> str:
    """``about 9 s left``, ``about 3 min left``, ``at most 9 s left``; empty if unknown or if nothing is left."""
    if not seconds or seconds < 0.5:
        return ""
    left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{'at most' if is_limit else 'about'} {left} left"


def _bar_or_log(console: Console) -> BarProgress | LogProgress:
    can_move = console.is_interactive and console.file.isatty()  # with FORCE_COLOR rich mistakes a log for a terminal
    return BarProgress(console) if can_move else LogProgress(console)


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))
