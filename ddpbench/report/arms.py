"""Arms of one job in one table: throughput, interval, speed-up against the first, memory; then what limits each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.compare import ArmRow, compare
from ddpbench.record.config import Config
from ddpbench.record.record import Job
from ddpbench.report.ending import word_of
from ddpbench.report.figures import MISSING, gib, interval, significant
from ddpbench.report.header import labelled
from ddpbench.report.ink import LABEL, inked
from ddpbench.report.layout import Page, columns

FIGURE, INTERVAL, SPEEDUP, MEMORY = "images/s", "interval", "speed-up", "peak GiB"
ALIGN = {FIGURE: ">", INTERVAL: ">", SPEEDUP: "<", MEMORY: ">"}

NAMES = ("workload", "precision", "optimizer", "loader", "engine")
"""Fields whose values tell by themselves what they are of."""


def arms(job: Job, page: Page) -> Iterator[Text]:
    """The table, without its interval and then without its memory where the page is too narrow; then each arm's limit."""
    rows = compare(job.records)
    for left_out in ((), (INTERVAL,), (INTERVAL, MEMORY)):
        kept = [heading for heading in ALIGN if heading not in left_out]
        align = "<" * len(job.swept) + "".join(ALIGN[heading] for heading in kept) + "<"  # the last is for what runs on
        heading = [*(field.replace("_", "-") for field in job.swept), *kept, ""]
        cells = [heading, *([*arm_values(row.config, job.swept), *_cells(row, kept)] for row in rows)]
        lines = columns(cells, align, page)
        if max(map(len, lines)) <= page.width:
            break
    yield from inked(lines, LABEL, len(lines[0]))
    equal = [arm_name(row.config, job.swept) for row in rows[1:] if _no_difference(row)]
    yield from labelled("no difference found:", equal, page)
    limits: dict[str, list[str]] = {}
    for record in job.records:
        if record.verdict:
            limits.setdefault(record.verdict.kind, []).append(arm_name(record.config, job.swept))
    yield from labelled("limit", (f"{kind}: {', '.join(names)}" for kind, names in limits.items()), page)


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


def _cells(row: ArmRow, kept: Sequence[str]) -> list[str]:
    """The cells behind an arm's values; an arm without a figure, or with none to compare, says why in their place."""
    if row.images_per_s is None or row.low is None or row.high is None:
        return [word_of(row.state), row.why]
    center, low, high = interval(row.images_per_s, row.low, row.high)
    cells = {FIGURE: center, INTERVAL: f"{low} to {high}" if row.low < row.high else MISSING}
    if row.state:
        return [*(cells[heading] for heading in kept if heading in cells), f"{row.state}: {row.why}"]
    cells |= {SPEEDUP: speedup_text(row), MEMORY: gib(row.peak_bytes)}
    return [*(cells[heading] for heading in kept), ""]


def _no_difference(row: ArmRow) -> bool:
    """The interval of the speed-up holds 1."""
    return row.speedup_low is not None and row.speedup_high is not None and row.speedup_low <= 1 <= row.speedup_high
