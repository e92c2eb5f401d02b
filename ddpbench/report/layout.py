"""Lays out text: wrapped items, commands to copy, aligned columns, styles."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")
"""A word of a shell command with its quotes; a space inside quotes does not end it."""

HINT_PIECE = re.compile(r"`[^`]*`[,.;:]?|\S+")
"""A piece of a hint that is not broken across lines: a word, or text in backticks."""

COLUMN_GAP = "  "
"""Gap between two columns of a table."""

TABLE_WIDTH = 80
"""Width that every table is laid out for; on a narrower page its lines are too long."""


@dataclass(frozen=True)
class Page:
    """The page to print on: its width in columns, whether it shows more than ASCII, and whether it shows everything that is known."""

    width: int
    unicode: bool
    verbose: bool = False

    @property
    def table_width(self) -> int:
        return max(self.width, TABLE_WIDTH)


def wrap_items(label: str, items: Iterable[str], page: Page, gap: str = "   ") -> list[str]:
    """``label``, then ``items`` side by side, wrapped and indented under the first item.

    An item is broken, between words, only if it is wider than the page itself.
    """
    indent = " " * len(label)
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(gap) + len(item) <= page.width:
            lines[-1] += gap + item
        else:
            lines += [indent + piece for piece in _wrap_words(item, page.width - len(indent))]
    return [label + lines[0][len(indent) :], *lines[1:]] if lines else [label.rstrip()]


def wrap_text(label: str, text: str, page: Page) -> list[str]:
    """``label`` and ``text``, wrapped between words."""
    return wrap_items(label, text.split(), page, gap=" ")


def wrap_hint(label: str, text: str, page: Page) -> list[str]:
    """``label`` and ``text``, wrapped; text in backticks is a command and is wrapped as one."""
    indent = " " * len(label)
    lines: list[str] = []
    prose: list[str] = []
    for item in HINT_PIECE.findall(text):
        typed = item.replace("`", "")
        if item.startswith("`") and len(indent) + len(typed) > page.width:
            lines += (
                [*wrap_items(indent, prose, page, gap=" "), *wrap_command(indent, typed, page)]
                if prose
                else wrap_command(indent, typed, page)
            )
            prose = []
        else:
            prose.append(typed)
    lines += wrap_items(indent, prose, page, gap=" ") if prose else []
    return [label + lines[0][len(indent) :], *lines[1:]]


def wrap_command(label: str, text: str, page: Page) -> list[str]:
    """A shell command wrapped so that it can be copied: backslashes, no broken words."""
    indent = " " * (len(label) + 2)
    room = page.width - len(" \\")
    lines: list[str] = []
    for unit in _flags_with_values(SHELL_WORD.findall(text)):
        if lines and len(lines[-1]) + 1 + len(unit) <= room:
            lines[-1] += f" {unit}"
        else:
            lines.append(f"{indent if lines else label}{unit}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def align_columns(rows: Sequence[Sequence[str]], align: str, page: Page) -> list[str]:
    """``rows`` padded to columns; ``align`` has one ``<`` or ``>`` per column.

    The last cell of a row that is shorter than ``align`` spans the remaining columns and wraps.
    """
    full = [row for row in rows if len(row) == len(align)]
    shorter = [row[:-1] for row in rows if len(row) < len(align)]
    widths = [max((len(row[at]) for row in [*full, *shorter] if at < len(row)), default=0) for at in range(len(align))]
    lines: list[str] = []
    for row in rows:
        num_padded = len(row) if len(row) == len(align) else len(row) - 1
        padded = COLUMN_GAP.join(f"{cell:{align[at]}{widths[at]}}" for at, cell in enumerate(row[:num_padded]))
        lines += [padded.rstrip()] if num_padded == len(row) else wrap_items(padded + COLUMN_GAP, [row[-1]] if row[-1] else [], page)
    return lines


def _wrap_words(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False) or [""]


def _flags_with_values(words: Sequence[str]) -> list[str]:
    """Each flag together with its value, so that no line break separates them."""
    units: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if before.startswith("-") and "=" not in before and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
    return units


LABEL = "bold"
GOOD, CAUTION, BAD = "bold green", "bold yellow", "bold red"


def styled(lines: Sequence[str], style: str = "", length: int | None = None) -> list[Text]:
    """The lines as Text, styled: all of them, or the first ``length`` characters of the first."""
    if length is None or not lines:
        return [Text(line, style=style) for line in lines]
    first, *rest = (Text(line) for line in lines)
    first.stylize(style, 0, length)
    return [first, *rest]
