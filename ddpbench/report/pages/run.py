"""The page of a run or of several arms: verdict first, then evidence, then the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.summary import summarize
from ddpbench.record.record import Job, Record
from ddpbench.report.console import page_for, print_lines, print_sections, record_path_lines
from ddpbench.report.layout import LABEL, Page, align_columns, styled, wrap_hint
from ddpbench.report.messages.arms import arm_name
from ddpbench.report.pages.arms import arm_table, best_arm_lines
from ddpbench.report.pages.checks import check_lines, strict_failure_lines
from ddpbench.report.pages.header import detail_lines, header_lines, shared_header_lines
from ddpbench.report.pages.loaders import loader_table, loading_cost_lines
from ddpbench.report.pages.phases import phase_table
from ddpbench.report.pages.ranks import rank_summary_lines, rank_table
from ddpbench.report.pages.roofline import roofline_lines
from ddpbench.report.pages.status import quiet_items, status_lines
from ddpbench.report.pages.throughput import throughput_lines
from ddpbench.report.pages.verdict import NO_LOADER_HINT, could_measure_loader, record_verdict_lines

Section = Sequence[Text]


def render_run(job: Job, console: Console, path: Path | None, verbose: bool = False, quiet: bool = False) -> None:
    """Print ``job``: the page of its run or, with several arms, their table.

    Prints any status. About 25 lines; ``verbose`` adds all settings, phases and checks, a row per rank and a page per arm. ``quiet``
    prints one line per arm and, with ``--strict``, one per check of severity "warning" or "error". ``path`` is the record's file, None
    if it could not be saved.
    """
    page = page_for(console, verbose)
    if quiet:
        failures = strict_failure_lines(_named(job), page) if job.records[0].config.strict else ()
        print_lines(console, [*map(Text, _quiet_lines(job, page)), *failures])
        return
    is_single = len(job.records) == 1
    *before, checks = _run(job.records[0], page) if is_single else _comparison_sections(job, page)
    print_sections(console, [*before, [*checks, *record_path_lines(path, page)]])


def _run(record: Record, page: Page) -> Iterator[Section]:
    summary = summarize(record)
    yield [*header_lines(record, page), *(detail_lines(record, page) if page.verbose else ())]
    yield [*status_lines({"": record}, page)]
    yield [*record_verdict_lines(record, page)]
    yield [*throughput_lines(record, summary, page), *rank_summary_lines(record, summary, page)]
    if record.throughput or page.verbose:  # timings of a step that did not train are no evidence
        yield [*phase_table(record, summary, page), *(loading_cost_lines(record, page) if page.verbose else ())]
        yield [*rank_table(record, summary, page)]
    yield [*roofline_lines(record, page)]
    yield [*check_lines({"": record}, page)]


def _comparison_sections(job: Job, page: Page) -> Iterator[Section]:
    named = _named(job)
    yield [*shared_header_lines(job.records, page)]
    yield [*best_arm_lines(job, page)]
    no_loader = all(map(could_measure_loader, job.records))
    yield [*arm_table(job, page), *(styled(wrap_hint("note  ", NO_LOADER_HINT, page), LABEL, len("note")) if no_loader else ())]
    yield [*loader_table(job, page)]
    if not page.verbose and any(record.roofline for record in job.records):
        yield styled(wrap_hint("roofline  ", "`-v` shows the table of each arm", page), LABEL, len("roofline"))
    yield [*status_lines(named, page)]
    yield [*check_lines(named, page)]
    if page.verbose:
        for name, record in named.items():
            yield styled([f"--- {name} ---"], LABEL)
            yield from _run(record, page)


def _named(job: Job) -> Mapping[str, Record]:
    """Arm name -> record; the name is empty for a single arm."""
    return {arm_name(record.config, job.swept) if len(job.records) > 1 else "": record for record in job.records}


def _quiet_lines(job: Job, page: Page) -> list[str]:
    """One line per arm: its name if there are several, its figure, its status unless it is ok."""
    rows = [quiet_items(record) for record in job.records]
    if len(rows) == 1:
        return ["   ".join(rows[0])]
    named = [[arm_name(record.config, job.swept), "   ".join(row)] for record, row in zip(job.records, rows, strict=True)]
    return align_columns(named, "<<", page)
