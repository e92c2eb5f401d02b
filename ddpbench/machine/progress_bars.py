"""Progress bars of a user's script on the terminal: they make room for lines of ddpbench.

Both tqdm and rich can do that, but only if they are asked. They are never imported here: a script without them has no bars.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO


@contextmanager
def room_for_lines(stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream for whole lines that end on ``stream``, which is stderr. Bars are cleared meanwhile, and drawn again below."""
    with ExitStack() as cleared:
        bars = _tqdm()
        if bars is not None and _open_bars(bars):
            with suppress(Exception):  # of another version of tqdm
                cleared.enter_context(bars.external_write_mode(file=stream))
        redirected = getattr(sys.stderr, "rich_proxied_file", None)  # rich prints above its bars what goes to stderr meanwhile
        yield sys.stderr if redirected is stream else stream


def close_bars() -> None:
    """Close the bars of a script that has been ended inside a loop, so that what follows begins on a line of its own."""
    for bar in _open_bars(_tqdm()):
        with suppress(Exception):  # of a bar of the script's own class
            bar.close()


def _tqdm() -> Any:
    return getattr(sys.modules.get("tqdm"), "tqdm", None)


def _open_bars(bars: Any) -> list[Any]:
    return [bar for bar in list(getattr(bars, "_instances", ())) if not getattr(bar, "disable", False)]
