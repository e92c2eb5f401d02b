"""Arms of one job in one table: throughput, interval, speed-up against the first, memory; then what limits each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.compare import ArmRow, compare
from ddpbench.record.config import Config
from ddpbench.record.record import Job
from ddpbench.report.ending import word_of
from ddpbench.report.figures import MISSING, gib, interval, significant
from ddpbench.report.header import labelled, rate
from ddpbench.report.ink import LABEL, inked
from ddpbench.report.layout import Page, columns, sentence

FIGURE, INTERVAL, SPEEDUP, MEMORY = "figure", "interval", "speed-up", "peak GiB"
ALIGN = {FIGURE: ">", INTERVAL: ">", SPEEDUP: "<", MEMORY: ">"}

INDENT = "  "

NAMES = ("workload", "precision", "optimizer", "loader", "engine")
"""Fields whose values tell by themselves what they are of."""


def arms(job: Job, page: Page) -> Iterator[Text]:
    """The table, as full as the page is wide; then what its figures do not tell: too few rounds, no difference, each arm's limit."""
    rows = compare(job.records)
    lines = _table(rows, job.swept, rate(*job.records), page)
    yield from inked(lines, LABEL, len(lines[0]))
    few = {row.reach.of for row in rows if row.reach and row.reach.confidence is None and row.reach.of > 1}
    yield from labelled("few", [f"{rounds} rounds: their range, no interval" for rounds in few], page)
    equal = [arm_name(row.config, job.swept) for row in rows[1:] if _no_difference(row)]
    yield from labelled("equal", [f"no difference from the first: {', '.join(equal)}"] if equal else [], page)
    limits: dict[str, list[str]] = {}
    for record in job.records:
        if record.verdict:
            limits.setdefault(record.verdict.kind, []).append(arm_name(record.config, job.swept))
    judged = sum(map(len, limits.values()))
    yield from labelled("limit", (f"{kind}: {_all_or(names, judged)}" for kind, names in limits.items()), page)


def _table(rows: Sequence[ArmRow], swept: Sequence[str], unit: str, page: Page) -> list[str]:
    """Where the page is too narrow without its interval, memory, the speed-up's interval; at last with each name on a line of its own."""
    for left_out, brief in (((), False), ((INTERVAL,), False), ((INTERVAL, MEMORY), False), ((INTERVAL, MEMORY), True)):
        kept = [heading for heading in ALIGN if heading not in left_out]
        align = "<" * len(swept) + "".join(ALIGN[heading] for heading in kept) + "<"  # the last is for what runs on
        heading = [*(field.replace("_", "-") for field in swept), *_headings(kept, unit), ""]
        cells = [[*arm_values(row.config, swept), *_cells(row, kept, brief)] for row in rows]
        lines = columns([heading, *cells], align, page)
        if max(map(len, lines)) <= page.width:
            return lines
    kept = [FIGURE, SPEEDUP]
    lines = columns(
        [[*_headings(kept, unit), ""], *(_cells(row, kept) for row in rows)], "><<", Page(page.width - len(INDENT), page.unicode)
    )
    return ["arm", INDENT + lines[0]] + [
        line for row, own in zip(rows, lines[1:], strict=True) for line in (*sentence("", arm_name(row.config, swept), page), INDENT + own)
    ]


def _headings(kept: Sequence[str], unit: str) -> list[str]:
    return [unit if heading == FIGURE else heading for heading in kept]


def _all_or(names: Sequence[str], of: int) -> str:
    return "every arm with a figure" if len(names) == of > 1 else ", ".join(names)


def arm_values(config: Config, swept: Sequence[str]) -> list[str]:
    """The value of each swept field as it would be typed."""
    values = (getattr(config, field) for field in swept)
    return [("on" if value else "off") if isinstance(value, bool) else MISSING if value is None else str(value) for value in values]


def arm_name(config: Config, swept: Sequence[str]) -> str:
    """The values in which an arm differs, ``amp-fp16 batch-size 128``; the workload where it differs in none."""
    values = zip(swept, arm_values(config, swept), strict=True)
    words = (value if field in NAMES else f"{field.replace('_', '-')} {value}" for field, value in values)
    return " ".join(words) or config.workload


def speedup_text(row: ArmRow) -> str:
    """``2.16 (2.15 to 2.17)``: half the width to one digit, for a ratio is read for its size. ``1`` for the first arm."""
    if row.speedup is None or row.speedup_low is None or row.speedup_high is None:
        return significant(row.speedup)
    if row.speedup_low == row.speedup_high:
        return significant(row.speedup, 1)
    center, low, high = interval(row.speedup, row.speedup_low, row.speedup_high, width_digits=1)
    return f"{center} ({low} to {high})"


def _cells(row: ArmRow, kept: Sequence[str], brief: bool = False) -> list[str]:
    """The cells behind an arm's values; an arm without a figure, or with none to compare, says why in their place.

    What ended an arm that failed is told below the table, where there is room for it.
    """
    if row.images_per_s is None or row.reach is None:
        return [word_of(row.state), row.why if row.state == "invalid" else ""]
    center, low, high = interval(row.images_per_s, row.reach.low, row.reach.high)
    cells = {FIGURE: center, INTERVAL: f"{low} to {high}" if row.reach.low < row.reach.high else MISSING}
    if row.state:
        return [*(cells[heading] for heading in kept if heading in cells), f"{row.state}: {row.why}"]
    cells |= {SPEEDUP: speedup_text(row).partition(" ")[0] if brief else speedup_text(row), MEMORY: gib(row.peak_bytes)}
    return [*(cells[heading] for heading in kept), ""]


def _no_difference(row: ArmRow) -> bool:
    """The interval of the speed-up holds 1; a range is none."""
    if row.reach is None or row.reach.confidence is None:
        return False
    return row.speedup_low is not None and row.speedup_high is not None and row.speedup_low <= 1 <= row.speedup_high
