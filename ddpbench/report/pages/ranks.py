"""One row per rank, slowest own time first, and the straggler by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from ddpbench.analysis.ranks import RankRow
from ddpbench.analysis.run_length import is_too_short_for_verdict
from ddpbench.analysis.straggler import Straggler
from ddpbench.analysis.summary import Summary
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.report.format import format_decimals, format_gib, format_rounded, step_decimals
from ddpbench.report.grid import GridColumn, column_lines
from ddpbench.report.layout import CAUTION, LABEL, Page, styled, wrap_items, wrap_text
from ddpbench.report.messages.arms import throughput_unit
from ddpbench.report.messages.bottlenecks import straggler_phrase

MAX_ROWS = 4
"""Above this many ranks only the slowest, the median and the fastest have a row, unless the page is verbose."""


def rank_summary_lines(record: Record, summary: Summary, page: Page) -> list[Text]:
    """The range of the ranks in one line; empty for a single rank, and if the page has a table of ranks."""
    rows = summary.ranks
    if len(rows) < 2 or _has_table(record, summary, page):
        return []
    decimals = step_decimals(max(row.step_ms for row in rows))
    data = [] if record.config.loader == SYNTHETIC else [f"data wait {_range([row.data_wait_ms for row in rows], decimals)} ms"]
    items = [f"step without sync {_range([row.own_ms for row in rows], decimals)} ms", *data]
    return styled(wrap_items(f"{'ranks':13}", items, page), LABEL, len("ranks"))


def _has_table(record: Record, summary: Summary, page: Page) -> bool:
    """Whether the page is verbose, or a rank stands out."""
    return page.verbose or summary.straggler is not None or (record.verdict is not None and record.verdict.rank is not None)


def _range(spans_ms: Sequence[float], decimals: int) -> str:
    """``37.48 to 37.53``."""
    least, most = format_decimals(min(spans_ms), decimals), format_decimals(max(spans_ms), decimals)
    return least if least == most else f"{least} to {most}"


def rank_table(record: Record, summary: Summary, page: Page) -> Iterator[Text]:
    """The table of ranks, if the page is verbose or a rank stands out; then the straggler.

    Empty for a single CPU rank, whose phases show the same.
    """
    rows = summary.ranks
    if not rows or (len(rows) == 1 and record.environment.device_type != "cuda") or not _has_table(record, summary, page):
        return
    if len(rows) > MAX_ROWS and not page.verbose:
        shown = {"slowest": rows[0], "median": rows[len(rows) // 2], "fastest": rows[-1]}
        names = [f"{place} {row.rank}" for place, row in shown.items()]
        table = _columns(record, names, [*shown.values()])
    else:
        names = [str(row.rank) for row in rows]
        table = _columns(record, names, rows)
    headings, lines = _fit_columns(table, page)
    yield from styled(headings, LABEL)
    for name, line in zip(names, lines, strict=True):
        yield from styled([line], CAUTION if summary.straggler and name.split()[-1] == str(summary.straggler.rank) else "")
    in_verdict = record.verdict is not None and record.verdict.rank is not None
    if not in_verdict and not is_too_short_for_verdict(record):
        yield from straggler_lines(record, summary.straggler, page)
    if len(lines) < len(rows):
        yield from styled(wrap_text("", f"{len(rows)} ranks, sorted by own ms (step minus sync); -v shows all", page))


def _columns(record: Record, names: Sequence[str], rows: Sequence[RankRow]) -> list[GridColumn]:
    cuda = record.environment.device_type == "cuda"
    decimals = step_decimals(max(row.step_ms for row in rows))
    waits = [format_decimals(row.data_wait_ms, decimals) for row in rows]
    data = [] if record.config.loader == SYNTHETIC else [GridColumn("data ms", waits)]
    table = [
        GridColumn("rank", names),
        GridColumn("step ms", [format_decimals(row.step_ms, decimals) for row in rows]),
        *data,
        GridColumn("own ms", [format_decimals(row.own_ms, decimals) for row in rows]),
        GridColumn("sync ms", [format_decimals(row.collective_wait_ms, decimals) for row in rows]),
    ]
    if record.environment.nodes > 1:
        table.insert(1, GridColumn("host", [row.host for row in rows], align="<"))
    if not cuda:
        return [*table, GridColumn("host GiB", [format_gib(row.rss_bytes) for row in rows])]
    return [
        *table,
        GridColumn("peak GiB", [format_gib(row.peak_allocated_bytes) for row in rows]),
        GridColumn("SM MHz", [format_decimals(row.sm_mhz, 0).replace(",", "") for row in rows]),
        GridColumn("watts", [format_decimals(row.watts, 0) for row in rows]),
        GridColumn("deg C", [format_decimals(row.celsius, 0) for row in rows]),
    ]


def _fit_columns(table: Sequence[GridColumn], page: Page) -> tuple[list[str], list[str]]:
    """The heading, on two lines if the table would be too wide otherwise, and the rows."""
    lines = column_lines(table, page)
    if max(map(len, lines)) <= page.table_width:
        return lines[:1], lines[1:]
    lines = column_lines([_with_stacked_heading(column) for column in table], page)
    return lines[:2], lines[2:]


def _with_stacked_heading(column: GridColumn) -> GridColumn:
    """The column with the unit of its heading on a second line."""
    name, _, unit = column.heading.rpartition(" ")
    return replace(column, heading=name, cells=[unit, *column.cells])


def straggler_lines(record: Record, slow: Straggler | None, page: Page) -> list[Text]:
    """The straggler in one sentence; empty if there is none."""
    if slow is None:
        return []
    device = f", GPU {slow.device_index}" if record.environment.device_type == "cuda" else ""
    name = f"slow rank {slow.rank}"
    cost = f"costs {format_rounded(slow.cost_samples_per_s)} {throughput_unit(record)}"
    text = (
        f"{name} ({slow.host}{device}): {slow.excess_fraction:.0%} slower in every round ({straggler_phrase(slow.slow_in, record)}); {cost}"
    )
    return styled(wrap_text("", text, page), CAUTION, len(name))
