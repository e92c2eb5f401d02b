"""A bar at the foot of a terminal: one line that moves only when told to, and is gone at the end."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column


def can_move(console: Console) -> bool:
    return console.is_interactive and console.file.isatty()  # FORCE_COLOR lets rich take a log for a terminal


def make_bar(console: Console, fill: bool = False) -> Progress:
    """A bar of one task, and the task's description behind it; with ``fill`` these take the whole line, and what is longer is cropped.

    No thread redraws it: that would take the interpreter from the work that is watched.
    """
    column = Column(no_wrap=True, overflow="crop", ratio=1) if fill else None
    return Progress(
        BarColumn(bar_width=console.width // 5),
        TextColumn("{task.description}", markup=False, table_column=column),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        expand=fill,
    )


def start(bar: Progress) -> None:
    bar.start()
    bar.console.show_cursor(True)  # a process that is killed could not bring it back
