"""Colours for lines that are laid out already. A colour repeats what a word says, and is never the only sign."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

LABEL = "bold"
GOOD, CAUTION, BAD = "bold green", "bold yellow", "bold red"


def styled(lines: Sequence[str], style: str = "", length: int | None = None) -> list[Text]:
    """The lines as Text: the first ``length`` characters of the first line in ``style``, or all lines where no length is given."""
    if length is None or not lines:
        return [Text(line, style=style) for line in lines]
    first, *rest = (Text(line) for line in lines)
    first.stylize(style, 0, length)
    return [first, *rest]
