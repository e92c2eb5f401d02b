"""The table of arms (throughput, interval, speed-up, memory), then the best arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from ddpbench.analysis.compare import ArmRow, compare
from ddpbench.analysis.fastest import (
    MAX_EQUIVALENT_RATIO,
    BatchKnee,
    BestArm,
    break_even,
    find_batch_knee,
    find_best_arm,
    next_step_after_comparison,
)
from ddpbench.analysis.metrics import accuracy_split, last_accuracy
from ddpbench.analysis.stats import PairedRatio
from ddpbench.record.record import Job, Record
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.report.format import MISSING, format_gib, format_interval, format_percent
from ddpbench.report.layout import CAUTION, GOOD, LABEL, Page, align_columns, styled, wrap_command, wrap_text
from ddpbench.report.messages.arms import arm_name, arm_values, throughput_unit
from ddpbench.report.messages.status import failure_reason
from ddpbench.report.messages.verdict import next_step_text, verdict_label
from ddpbench.report.pages.header import MAX_NAMED, labelled_lines

FIGURE, INTERVAL, SPEEDUP, MEMORY = "figure", "interval", "speed-up", "memory"
ALIGN = {FIGURE: ">", INTERVAL: ">", SPEEDUP: "<", MEMORY: ">"}


def arm_table(job: Job, page: Page) -> Iterator[Text]:
    """The table with as many columns as fit, then notes on its figures.

    The notes: too few rounds, equal or inconclusive speed-ups, accuracy, bottlenecks.
    """
    rows = compare(job.records)
    lines = _fit_table(rows, job.swept, {FIGURE: throughput_unit(*job.records), MEMORY: memory_heading(job.records)}, page)
    yield from styled(lines, LABEL, len(lines[0]))
    range_rounds = {
        row.interval.num_values for row in rows if row.interval and row.interval.confidence is None and row.interval.num_values > 1
    }
    yield from labelled_lines("note", [f"{rounds} rounds: range, no confidence interval" for rounds in range_rounds], page)
    uneven = [
        f"{arm_name(row.record.config, job.swept)} {pluralize(row.speedup.pairs, 'round')}"
        for row in rows
        if row.rounds_differ and row.speedup
    ]
    if uneven and page.verbose:
        yield from labelled_lines("pairs", [f"speed-up over the rounds shared with the first arm: {', '.join(uneven)}"], page)
    alike = {arm_name(row.record.config, job.swept): row.speedup for row in rows[1:] if row.speedup and _includes_one(row.speedup)}
    equal = [name for name, speedup in alike.items() if speedup.low > 1 / MAX_EQUIVALENT_RATIO and speedup.high < MAX_EQUIVALENT_RATIO]
    inconclusive = [name for name in alike if name not in equal]
    yield from labelled_lines("equal", [f"no difference from the first arm: {', '.join(equal)}"] if equal else [], page)
    yield from labelled_lines("open", [f"inconclusive against the first arm: {', '.join(inconclusive)}"] if inconclusive else [], page)
    accuracies = {arm_name(record.config, job.swept): last_accuracy(record) for record in job.records}
    reached = [f"{name} {format_percent(share)}" for name, share in accuracies.items() if share is not None]
    yield from labelled_lines("accuracy", [f"on {accuracy_split(job.records[0])}: {', '.join(reached)}"] if reached else [], page)
    bottlenecks: dict[str, list[str]] = {}
    for record in job.records:
        if record.verdict:
            bottlenecks.setdefault(verdict_label(record.verdict), []).append(arm_name(record.config, job.swept))
    judged = sum(map(len, bottlenecks.values()))
    yield from labelled_lines("bottleneck", (f"{kind}: {_arms_or_all(names, judged)}" for kind, names in bottlenecks.items()), page)


def _fit_table(rows: Sequence[ArmRow], swept: Sequence[str], units: Mapping[str, str], page: Page) -> list[str]:
    """The table without intervals, then memory, then speed-up intervals, until it fits."""
    for dropped, without_interval in (((), False), ((INTERVAL,), False), ((INTERVAL, MEMORY), False), ((INTERVAL, MEMORY), True)):
        kept = [heading for heading in ALIGN if heading not in dropped]
        align = "<" * len(swept) + "".join(ALIGN[heading] for heading in kept) + "<"  # the last is for text that spans the row
        heading = [*(field.replace("_", "-") for field in swept), *(units.get(name, name) for name in kept), ""]
        cells = [[*arm_values(row.record.config, swept), *_cells(row, kept, without_interval)] for row in rows]
        lines = align_columns([heading, *cells], align, page)
        if max(map(len, lines)) <= page.table_width:
            break
    return lines


def memory_heading(records: Sequence[Record]) -> str:
    """Heading of the memory column: a GPU's peak or, for CPU ranks, a rank's host memory."""
    return "peak GiB" if records[0].environment.device_type == "cuda" else "host GiB"


def _arms_or_all(names: Sequence[str], total: int) -> str:
    return "all measured arms" if len(names) == total > 1 else ", ".join(names)


def speedup_text(row: ArmRow, without_interval: bool = False) -> str:
    """The speed-up as in ``ratio_text``; ``-`` if there is none, ``1`` for the first arm."""
    if row.speedup is None:
        return MISSING
    return "1" if row.speedup.low == row.speedup.high == 1 else ratio_text(row.speedup, without_interval)


def ratio_text(ratio: PairedRatio, without_interval: bool = False) -> str:
    """``2.16 (2.15 to 2.17)``: half the width to one digit, since only a ratio's size matters.

    Two digits if one would make the interval seem to include 1. Without an interval ``2.2 (2.1 to 2.3, 2 pairs)`` or ``2.1 (1 pair)``:
    ``without_interval`` drops the range but keeps the number of pairs.
    """
    center, low, high = format_interval(ratio.center, ratio.low, ratio.high, width_digits=1)
    if not ratio.low <= 1 <= ratio.high and float(low) <= 1 <= float(high):
        center, low, high = format_interval(ratio.center, ratio.low, ratio.high)
    reach = [] if without_interval or low == high else [f"{low} to {high}"]
    notes = ", ".join([*reach, *([] if ratio.has_interval else [pluralize(ratio.pairs, "pair")])])
    return f"{center} ({notes})" if notes else center


def _cells(row: ArmRow, kept: Sequence[str], without_interval: bool = False) -> list[str]:
    """The cells after an arm's name, or why it has no figure or is not comparable.

    The reason of a failed arm is printed below the table, which has more room.
    """
    if row.samples_per_s is None or row.interval is None:
        return [row.state, failure_reason(row.record) if row.state == "invalid" else ""]
    center, low, high = format_interval(row.samples_per_s, row.interval.low, row.interval.high)
    cells = {FIGURE: center, INTERVAL: f"{low} to {high}" if row.interval.low < row.interval.high else MISSING}
    if row.state:
        return [
            *(cells[heading] for heading in kept if heading in cells),
            f"{row.state}: other {'GPU' if row.record.environment.device_type == 'cuda' else 'CPU'}",
        ]
    cells |= {SPEEDUP: speedup_text(row, without_interval), MEMORY: format_gib(row.memory_bytes)}
    return [*(cells[heading] for heading in kept), ""]


def _includes_one(speedup: PairedRatio) -> bool:
    """Whether the confidence interval includes 1; a range is no confidence interval."""
    return speedup.has_interval and speedup.low <= 1 <= speedup.high


def best_arm_lines(job: Job, page: Page) -> Iterator[Text]:
    """The fastest arm, by how much, and the next command. Empty without two arms to compare."""
    found = find_best_arm(job.records)
    if found is None:
        return
    kind, sentence = _best_arm_text(found, job.swept)
    yield from styled(wrap_text(f"{kind}   ", sentence, page), GOOD if found.is_clear else CAUTION, len(kind))
    if found.left_out:
        names = ", ".join(arm_name(record.config, job.swept) for record in found.left_out)
        yield from styled(wrap_text("  note  ", f"not compared, since it loads nothing: {names}", page), LABEL, len("  note"))
    if even := break_even(found):
        than = arm_name(found.compared_to.config, job.swept)
        sentence = f"{format_3sig(even.later_start_s)} s later than {than}, ahead after {format_3sig(even.after_s)} s"
        yield from styled(wrap_text("  start ", sentence, page), LABEL, len("  start"))
    if knee := find_batch_knee(found, job.swept):
        yield from styled(wrap_text("  knee  ", _knee_text(knee, found.best.config.batch_size), page), LABEL, len("  knee"))
    if step := next_step_after_comparison(found, job):
        yield from styled(wrap_command("  next  ", next_step_text(step), page), LABEL, len("  next"))


def _knee_text(knee: BatchKnee, fastest: int) -> str:
    """The batch from which on larger ones gain little; ``fastest`` is the fastest batch."""
    if not knee.is_reached:
        return f"beyond batch {knee.batch_size:,}: larger ones may train faster still"
    if knee.batch_size >= fastest:
        return f"batch {knee.batch_size:,}: larger ones are no faster"
    return f"batch {knee.batch_size:,} trains {format_percent(knee.fraction)} as fast as {fastest:,}"


def _best_arm_text(result: BestArm, swept: Sequence[str]) -> tuple[str, str]:
    """The result in a word, and in a sentence."""
    best, than = (arm_name(record.config, swept) for record in (result.best, result.compared_to))
    names = [arm_name(record.config, swept) for record in result.tied]
    tied = ", ".join(names) if len(names) <= MAX_NAMED else f"{len(names)} arms"
    center, *reach = ratio_text(result.ratio).split(" ", 1)
    if reach and len(result.candidates) > 2 and result.ratio.has_interval:
        reach = [f"({reach[0].strip('()')}, 95% over all pairs)"]
    comparison = " ".join([f"{center} times {than}", *reach])
    if result.is_clear and result.is_ceiling:
        return "CEILING", f"{best} (no loader): {comparison}"
    if result.is_clear:
        return "FASTEST", f"{best}: {comparison}" if len(names) == 1 else f"{tied} are tied; {best}: {comparison}"
    if result.are_equivalent:
        return "NO DIFFERENCE", f"{best}: {comparison}" if len(names) == 2 else f"between {tied}"
    return "INCONCLUSIVE", f"{'too close' if result.ratio.has_interval else 'too few rounds'}; {best}: {comparison}"
