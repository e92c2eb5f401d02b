"""A row a rank, slowest own time first, and the slow rank by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from ddpbench.analysis.evidence import too_few_for_a_verdict
from ddpbench.analysis.ranks import RankRow
from ddpbench.analysis.straggler import StragglerNote
from ddpbench.analysis.summary import Summary
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.report.format import about, fixed, gib, step_decimals
from ddpbench.report.grid import Column, laid_out
from ddpbench.report.layout import Page, sentence
from ddpbench.report.pages.header import rate
from ddpbench.report.styled import CAUTION, LABEL, inked

MOST_ROWS = 16
"""Above this many ranks only the slowest, the median and the fastest have a row."""


def ranks(record: Record, summary: Summary, page: Page, verbose: bool = False) -> Iterator[Text]:
    """The table of ranks, folded above ``MOST_ROWS`` unless ``verbose``. Nothing for a lone CPU rank: the phases tell it all."""
    rows = summary.ranks
    if not rows or (len(rows) == 1 and record.environment.device_type != "cuda"):
        return
    if len(rows) > MOST_ROWS and not verbose:
        shown = {"slowest": rows[0], "median": rows[len(rows) // 2], "fastest": rows[-1]}
        names = [f"{place} {row.rank}" for place, row in shown.items()]
        table = _columns(record, names, [*shown.values()])
    else:
        names = [str(row.rank) for row in rows]
        table = _columns(record, names, rows)
    headings, lines = _drawn(table, page)
    yield from inked(headings, LABEL)
    for name, line in zip(names, lines, strict=True):
        yield from inked([line], CAUTION if summary.slow and name.split()[-1] == str(summary.slow.rank) else "")
    named = record.verdict is not None and record.verdict.rank is not None  # by the conclusion
    if not named and not too_few_for_a_verdict(record):
        yield from slow_rank(record, summary.slow, page)
    if len(lines) < len(rows):
        yield from inked(sentence("", f"{len(rows)} ranks, by their own time; a row each with -v", page))


def _columns(record: Record, names: Sequence[str], rows: Sequence[RankRow]) -> list[Column]:
    cuda = record.environment.device_type == "cuda"
    decimals = step_decimals(max(row.step_ms for row in rows))
    waits = [fixed(row.data_ms, decimals) for row in rows]
    fed = [] if record.config.loader == SYNTHETIC else [Column("data ms", waits)]
    table = [
        Column("rank", names),
        Column("step ms", [fixed(row.step_ms, decimals) for row in rows]),
        *fed,
        Column("own ms", [fixed(row.own_ms, decimals) for row in rows]),
        Column("sync ms", [fixed(row.sync_ms, decimals) for row in rows]),
    ]
    if record.environment.nodes > 1:
        table.insert(1, Column("host", [row.host for row in rows], align="<"))
    if not cuda:
        return [*table, Column("host GiB", [gib(row.rss_bytes) for row in rows])]
    return [
        *table,
        Column("peak GiB", [gib(row.peak_bytes) for row in rows]),
        Column("SM MHz", [fixed(row.sm_mhz, 0).replace(",", "") for row in rows]),
        Column("watts", [fixed(row.watts, 0) for row in rows]),
        Column("deg C", [fixed(row.celsius, 0) for row in rows]),
    ]


def _drawn(table: Sequence[Column], page: Page) -> tuple[list[str], list[str]]:
    """The heading, on two lines if the table is else wider than the page, and the rows."""
    lines = laid_out(table, page)
    if max(map(len, lines)) <= page.table_width:
        return lines[:1], lines[1:]
    lines = laid_out([_stacked(column) for column in table], page)
    return lines[:2], lines[2:]


def _stacked(column: Column) -> Column:
    """With the unit of its heading in a line of its own."""
    name, _, unit = column.heading.rpartition(" ")
    return replace(column, heading=name, cells=[unit, *column.cells])


def slow_rank(record: Record, slow: StragglerNote | None, page: Page) -> list[Text]:
    """Everything about the slow rank in one sentence, where there is one."""
    if slow is None:
        return []
    device = f", GPU {slow.device_index}" if record.environment.device_type == "cuda" else ""
    name = f"slow rank {slow.rank}"
    cost = f"costs {about(slow.cost_images_per_s)} {rate(record)}"
    words = f"{name} ({slow.host}{device}): +{slow.excess:.0%} own time, {slow.kind}, every round; {cost}"
    return inked(sentence("", words, page), CAUTION, len(name))
