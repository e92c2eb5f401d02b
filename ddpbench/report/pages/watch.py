"""The page of a watched script: that of a run, with the script's own header and the time outside of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.summary import summarize
from ddpbench.record.record import Job, Record
from ddpbench.record.script import OutsideKind, WatchedScript
from ddpbench.record.text import pluralize
from ddpbench.report.console import page_for, print_lines, print_sections, record_path_lines
from ddpbench.report.format import format_percent, format_significant
from ddpbench.report.layout import LABEL, Page, styled, wrap_items
from ddpbench.report.messages.roles import ONLY_WATCHED_REASONS
from ddpbench.report.pages.checks import check_lines
from ddpbench.report.pages.header import labelled_lines
from ddpbench.report.pages.phases import phase_table
from ddpbench.report.pages.ranks import rank_summary_lines, rank_table
from ddpbench.report.pages.script_header import script_header_lines
from ddpbench.report.pages.status import quiet_items, status_lines
from ddpbench.report.pages.throughput import throughput_lines
from ddpbench.report.pages.verdict import record_verdict_lines

OUTSIDE_NAMES: dict[OutsideKind, str] = {"validation": "validation", "checkpoint": "checkpoints", "between-epochs": "between epochs"}

MIN_SHOWN_FRACTION = 0.001
"""Fraction of the training from which a part of the time outside of steps is shown, unless the page is verbose."""

RESTART_FRACTION = 0.02
"""Fraction of the training between epochs from which the page says that workers restart then."""


def render_watch(job: Job, console: Console, path: Path | None, verbose: bool = False, quiet: bool = False) -> None:
    """Print the page of a watched script, also of one that a diagnosis could only watch, in about 25 lines.

    ``verbose`` adds all phases and checks, and a row per rank; ``quiet`` prints one line. ``path`` is the record's file, None if it
    could not be saved.
    """
    record, page = job.records[0], page_for(console, verbose)
    if quiet:
        print_lines(console, [Text("   ".join(quiet_items(record)))])
        return
    *before, checks = _sections(record, page)
    print_sections(console, [*before, [*checks, *record_path_lines(path, page)]])


def _sections(record: Record, page: Page) -> Iterator[Sequence[Text]]:
    summary = summarize(record)
    reason = record.script.only_watched if record.script else None
    note = labelled_lines("note", [ONLY_WATCHED_REASONS[reason]], page) if reason else []
    header = script_header_lines("diagnose" if reason else "watch", record, page)
    yield [*header, *labelled_lines("seen", _measured_items(record), page), *note]
    yield [*status_lines({"": record}, page)]
    yield [*record_verdict_lines(record, page)]
    yield [*throughput_lines(record, summary, page), *_outside_lines(record, page), *rank_summary_lines(record, summary, page)]
    yield [*phase_table(record, summary, page)]
    yield [*rank_table(record, summary, page)]
    yield [*check_lines({"": record}, page)]


def _measured_items(record: Record) -> Iterator[str]:
    script = record.script or WatchedScript()
    end = (", ended by ddpbench" if script.only_watched else ", ended by --steps") if script.ended_early else ""
    if script.step == "update":
        yield f"{pluralize(script.batches, 'update')} per rank{end}"
    else:
        yield f"{pluralize(script.batches, 'batch', 'es')} per rank in {pluralize(script.epochs, 'epoch')}{end}"
    if script.batches_per_update > 1:
        yield f"{script.batches_per_update} batches per update"
    if record.rounds:
        steps = sorted(timed.traces[0].steps for timed in record.rounds)
        length = f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} to {steps[-1]:,}"
        yield f"{pluralize(len(record.rounds), 'round')} of {length} steps"


def _outside_name(kind: OutsideKind, script: WatchedScript) -> str:
    """A single epoch has none to come after it: what lies between its steps is the script's own work."""
    return "other work" if kind == "between-epochs" and script.epochs <= 1 else OUTSIDE_NAMES[kind]


def _outside_lines(record: Record, page: Page) -> list[Text]:
    """The time that the training spent outside of its steps; empty if it spent none."""
    script = record.script
    if script is None or script.training_s <= 0 or not script.outside_s:
        return []
    outside_s = fsum(script.outside_s.values())
    smallest_s = 0.0 if page.verbose else MIN_SHOWN_FRACTION * script.training_s
    if outside_s < smallest_s:
        return []
    shown_s = {kind: seconds for kind, seconds in script.outside_s.items() if seconds >= smallest_s}
    parts = [f"{_outside_name(kind, script)} {format_percent(seconds / script.training_s, 2)}" for kind, seconds in shown_s.items()]
    total = f"{format_percent(outside_s / script.training_s, 2)} of {format_significant(script.training_s)} s of training"
    if (
        record.data
        and record.data.respawns_workers
        and script.epochs > 1
        and script.outside_s.get("between-epochs", 0.0) >= RESTART_FRACTION * script.training_s
    ):
        parts.append("workers restart every epoch: persistent_workers=True keeps them")
    label = f"{'outside':13}"
    return styled(wrap_items(label, [total, *parts], page), LABEL, len("outside"))
