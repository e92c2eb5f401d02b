"""A row a rank, slowest own time first, and the slow rank by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from ddpbench.analysis.evidence import too_few_for_a_verdict
from ddpbench.analysis.ranks import RankRow
from ddpbench.analysis.straggler import StragglerNote
from ddpbench.analysis.summary import Summary
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.report.figures import about, fixed, gib, step_decimals
from ddpbench.report.header import rate
from ddpbench.report.ink import CAUTION, LABEL, inked
from ddpbench.report.layout import Page, columns, sentence

MOST_ROWS = 16
"""Above this many ranks only the slowest, the median and the fastest have a row."""


@dataclass(frozen=True)
class RankColumn:
    """Its ``name`` and ``unit`` stand side by side, or on a narrow page one above the other."""

    name: str
    unit: str
    cells: Sequence[str]
    align: str = ">"
    essential: bool = True


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


def _columns(record: Record, names: Sequence[str], rows: Sequence[RankRow]) -> list[RankColumn]:
    cuda = record.environment.device_type == "cuda"
    decimals = step_decimals(max(row.step_ms for row in rows))
    waits = [fixed(row.data_ms, decimals) for row in rows]
    fed = [] if record.config.loader == SYNTHETIC else [RankColumn("data", "ms", waits)]
    table = [
        RankColumn("rank", "", names),
        RankColumn("step", "ms", [fixed(row.step_ms, decimals) for row in rows]),
        *fed,
        RankColumn("own", "ms", [fixed(row.own_ms, decimals) for row in rows]),
        RankColumn("sync", "ms", [fixed(row.sync_ms, decimals) for row in rows]),
    ]
    if record.environment.nodes > 1:
        table.insert(1, RankColumn("host", "", [row.host for row in rows], align="<"))
    if not cuda:
        return [*table, RankColumn("host", "GiB", [gib(row.rss_bytes) for row in rows])]
    return [
        *table,
        RankColumn("peak", "GiB", [gib(row.peak_bytes) for row in rows]),
        RankColumn("SM", "MHz", [fixed(row.sm_mhz, 0).replace(",", "") for row in rows], essential=False),
        RankColumn("watts", "", [fixed(row.watts, 0) for row in rows], essential=False),
        RankColumn("deg", "C", [fixed(row.celsius, 0) for row in rows], essential=False),
    ]


def _drawn(table: Sequence[RankColumn], page: Page) -> tuple[list[str], list[str]]:
    """The lines of the heading and of the rows, in the fullest form that the page is wide enough for."""
    essential = [column for column in table if column.essential]
    forms = [(table, 1), (table, 2), (essential, 1), (essential, 2)]
    for form, heading_lines in forms:
        if heading_lines == 1:
            headings = [[f"{column.name} {column.unit}".rstrip() for column in form]]
        else:
            headings = [[column.name if column.unit else "" for column in form], [column.unit or column.name for column in form]]
        cells = [list(row) for row in zip(*(column.cells for column in form), strict=True)]
        lines = columns([*headings, *cells], "".join(column.align for column in form), page)
        if max(map(len, lines)) <= page.width:
            break
    return lines[:heading_lines], lines[heading_lines:]


def slow_rank(record: Record, slow: StragglerNote | None, page: Page) -> list[Text]:
    """Everything about the slow rank in one sentence, where there is one."""
    if slow is None:
        return []
    device = f", GPU {slow.device_index}" if record.environment.device_type == "cuda" else ""
    name = f"slow rank {slow.rank}"
    cost = f"costs {about(slow.cost_images_per_s)} {rate(record)}"
    words = f"{name} ({slow.host}{device}): +{slow.excess:.0%} own time, {slow.kind}, every round; {cost}"
    return inked(sentence("", words, page), CAUTION, len(name))
