"""Tables of a sweep: named rows, a column per precision, split to the page width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import NamedTuple

from rich.text import Text

from ddpbench.analysis.metrics import MeanStd, Metric, mean_std
from ddpbench.record.record import Record
from ddpbench.report.format import MISSING, format_decimals, format_with_interval
from ddpbench.report.layout import COLUMN_GAP, LABEL, Page, align_columns, styled, wrap_text

OUT_OF_MEMORY = "OOM"


@dataclass(frozen=True)
class GridColumn:
    """One column: heading, one cell per row; ``joins_previous`` keeps it next to its left neighbour."""

    heading: str
    cells: Sequence[str]
    align: str = ">"
    joins_previous: bool = False

    @property
    def width(self) -> int:
        return max(map(len, [self.heading, *self.cells]))


class Grid(NamedTuple):
    """One table: title, columns that name the rows, columns of values."""

    title: str
    name_columns: Sequence[GridColumn]
    value_columns: Sequence[GridColumn]


def grid_lines(title: str, name_columns: Sequence[GridColumn], value_columns: Sequence[GridColumn], page: Page) -> Iterator[Text]:
    """The table under its title, split into parts if it is wider than the page.

    Every part repeats ``name_columns``.
    """
    yield from styled(wrap_text("", title, page), LABEL)
    for part in _split_to_width(name_columns, value_columns, page):
        yield from styled(column_lines(part, page))


def column_lines(table: Sequence[GridColumn], page: Page) -> list[str]:
    """The lines of ``table``, headings first."""
    rows = zip(*([column.heading, *column.cells] for column in table), strict=True)
    return align_columns(list(rows), "".join(column.align for column in table), page)


def mean_cell(metric: Metric, record: Record | None, with_std: bool = True) -> str:
    """``40.92 (2.08)``: mean and standard deviation over rounds, or the status without a value."""
    return mean_std_text(mean_std(metric.values(record)), metric, with_std) if record and metric.values(record) else status_cell(record)


def median_cell(metric: Metric, record: Record | None) -> str:
    """``40.9 (38.4 to 43.6)``: median and interval, or the median alone without an interval."""
    found = metric.median_and_interval(record) if record else None
    if found is None:
        return status_cell(record)
    if found.low == found.high:
        return format_metric(found.center, metric)
    return format_with_interval(found.center / metric.scale, found.low / metric.scale, found.high / metric.scale)


def mean_std_text(mean_std: MeanStd | None, metric: Metric, with_std: bool = True) -> str:
    if mean_std is None:
        return MISSING
    if mean_std.std is None or not with_std:
        return format_metric(mean_std.mean, metric)
    places = _places(mean_std.mean / metric.scale, metric)
    return f"{format_metric(mean_std.mean, metric)} ({format_decimals(mean_std.std / metric.scale, places)})"


def format_as_published(mean_std: MeanStd | None, metric: Metric, with_std: bool = True) -> str:
    """The value with the digits that the source prints."""
    if mean_std is None:
        return MISSING
    figures = [mean_std.mean, *([mean_std.std] if with_std and mean_std.std is not None else [])]
    mean, *sd = (f"{round(figure / metric.scale, 6):,}".removesuffix(".0") for figure in figures)
    return f"{mean} ({sd[0]})" if sd else mean


def format_metric(value: float, metric: Metric) -> str:
    """``value`` in the metric's unit: four digits, at most the decimals that its sources print.

    Small values keep at least two digits.
    """
    return format_decimals(value / metric.scale, _places(value / metric.scale, metric))


def status_cell(record: Record | None) -> str:
    """Why a table cell has no value; ``-`` if it was not requested."""
    if record is None or record.status == "ok":
        return MISSING
    return OUT_OF_MEMORY if record.out_of_memory else record.status


def _places(value: float, metric: Metric) -> int:
    exponent = floor(log10(abs(value))) if value else 0
    return max(min(max(3 - exponent, 0), metric.decimals), 1 - exponent if metric.decimals else 0)


def _split_to_width(names: Sequence[GridColumn], values: Sequence[GridColumn], page: Page) -> list[list[GridColumn]]:
    parts: list[list[GridColumn]] = []
    for group in _joined_groups(values):
        widened = [*parts[-1], *group] if parts else []
        if parts and sum(column.width for column in widened) + len(COLUMN_GAP) * (len(widened) - 1) <= page.table_width:
            parts[-1] = widened
        else:
            parts.append([*names, *group])
    return parts


def _joined_groups(values: Sequence[GridColumn]) -> list[list[GridColumn]]:
    groups: list[list[GridColumn]] = []
    for column in values:
        if column.joins_previous:
            groups[-1].append(column)
        else:
            groups.append([column])
    return groups
