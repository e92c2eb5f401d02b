"""Tables of cells over two settings: rows that are named, columns a precision, broken between columns if they are too many for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import NamedTuple

from rich.text import Text

from ddpbench.analysis.metrics import Measure, Spread, spread
from ddpbench.record.record import Record
from ddpbench.report.format import MISSING, fixed, ranged
from ddpbench.report.layout import GAP, Page, columns, sentence
from ddpbench.report.styled import LABEL, inked

NO_MEMORY = "no memory"


@dataclass(frozen=True)
class Column:
    """One column: what stands over it, and a cell a row. ``joined`` keeps it beside the column before it."""

    heading: str
    cells: Sequence[str]
    align: str = ">"
    joined: bool = False

    @property
    def width(self) -> int:
        return max(map(len, [self.heading, *self.cells]))


class Grid(NamedTuple):
    """One table: what it shows, the columns that name its rows, and those with figures."""

    title: str
    names: Sequence[Column]
    values: Sequence[Column]


def grid(title: str, names: Sequence[Column], values: Sequence[Column], page: Page) -> Iterator[Text]:
    """The table under its title; ``names`` are repeated in front of every part where its columns need more than one."""
    yield from inked(sentence("", title, page), LABEL)
    for part in _parts(names, values, page):
        yield from inked(laid_out(part, page))


def laid_out(table: Sequence[Column], page: Page) -> list[str]:
    """The lines of ``table``, the headings first."""
    rows = zip(*([column.heading, *column.cells] for column in table), strict=True)
    return columns(list(rows), "".join(column.align for column in table), page)


def mean_cell(measure: Measure, record: Record | None, with_sd: bool = True) -> str:
    """``40.92 (2.08)``: mean and standard deviation over rounds; how the cell ended where it has no value."""
    return spread_text(spread(measure.values(record)), measure, with_sd) if record and measure.values(record) else ended(record)


def middle_cell(measure: Measure, record: Record | None) -> str:
    """``40.9 (38.4 to 43.6)``: median and interval, or the median alone where there is no interval."""
    found = measure.middle(record) if record else None
    if found is None:
        return ended(record)
    if found.low == found.high:
        return number(found.center, measure)
    return ranged(found.center / measure.scale, found.low / measure.scale, found.high / measure.scale)


def spread_text(found: Spread | None, measure: Measure, with_sd: bool = True) -> str:
    if found is None:
        return MISSING
    if found.sd is None or not with_sd:
        return number(found.mean, measure)
    places = _places(found.mean / measure.scale, measure)
    return f"{number(found.mean, measure)} ({fixed(found.sd / measure.scale, places)})"


def as_published(found: Spread | None, measure: Measure, with_sd: bool = True) -> str:
    """With the very digits that the source prints."""
    if found is None:
        return MISSING
    figures = [found.mean, *([found.sd] if with_sd and found.sd is not None else [])]
    mean, *sd = (f"{round(figure / measure.scale, 6):,}".removesuffix(".0") for figure in figures)
    return f"{mean} ({sd[0]})" if sd else mean


def number(value: float, measure: Measure) -> str:
    """In the measure's unit: four digits, as many decimals as its sources print, and two digits at least of what is small."""
    return fixed(value / measure.scale, _places(value / measure.scale, measure))


def ended(record: Record | None) -> str:
    """In a cell's place, why it has no value: ``-`` for a cell that was never asked for."""
    if record is None or record.status == "ok":
        return MISSING
    return NO_MEMORY if record.out_of_memory else record.status


def _places(value: float, measure: Measure) -> int:
    exponent = floor(log10(abs(value))) if value else 0
    return max(min(max(3 - exponent, 0), measure.decimals), 1 - exponent if measure.decimals else 0)


def _parts(names: Sequence[Column], values: Sequence[Column], page: Page) -> list[list[Column]]:
    parts: list[list[Column]] = []
    for group in _groups(values):
        widened = [*parts[-1], *group] if parts else []
        if parts and sum(column.width for column in widened) + len(GAP) * (len(widened) - 1) <= page.table_width:
            parts[-1] = widened
        else:
            parts.append([*names, *group])
    return parts


def _groups(values: Sequence[Column]) -> list[list[Column]]:
    groups: list[list[Column]] = []
    for column in values:
        if column.joined:
            groups[-1].append(column)
        else:
            groups.append([column])
    return groups
