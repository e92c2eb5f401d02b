"""Many small pieces of work being done: a bar on a terminal, now and then a line in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO

from ddpbench.report.bar import can_move, make_bar, start
from ddpbench.report.console import make_console, say
from ddpbench.report.progress import time_left

EVERY_S = 5.0
"""Between two lines of a log."""


@contextmanager
def counting(
    stream: TextIO | None, what: str, total: int, items: str, width: int | None = None, every_s: float = EVERY_S
) -> Iterator[Callable[[int], None]]:
    """Within, a function to be told how many of ``total`` are done, first of all 0; until then ``stream`` shows nothing."""
    console = make_console(stream, width)
    moving, bar = can_move(console), make_bar(console)
    task = bar.add_task("", total=total)
    began: float | None = None
    said = 0.0

    def tell(done: int) -> None:
        nonlocal began, said
        now = monotonic()
        if began is None:
            began = said = now
            say(console, f"ddpbench: {what}")
            if moving:
                start(bar)
        left = (now - began) / done * (total - done) if done else None
        words = ", ".join(filter(None, [f"{done:,} of {total:,} {items}", time_left(left)]))
        if moving:
            bar.update(task, completed=done, description=words, refresh=True)
        elif now - said >= every_s:
            said = now
            say(console, f"ddpbench: {words}")
        console.file.flush()

    try:
        yield tell
    finally:
        if moving:
            bar.stop()
