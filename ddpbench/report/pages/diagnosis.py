"""The page of a diagnosis: what holds a training back, in words; then where a step goes, what each part can give, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.controls import diagnosed, experiments_of
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.pipeline.model import supply
from ddpbench.analysis.pipeline.peaks import ceilings
from ddpbench.analysis.summary import summarise
from ddpbench.record.record import Job, Record
from ddpbench.report.console import page_of, show, show_sections
from ddpbench.report.format import percent
from ddpbench.report.layout import Page, sentence
from ddpbench.report.pages.checks import unmeasured, warnings
from ddpbench.report.pages.header import labelled, loader_items, titled
from ddpbench.report.pages.node_state import machine
from ddpbench.report.pages.phases import phases
from ddpbench.report.pages.pipeline_table import ceiling_table, cost_line, cost_table, needs, starting, utilised
from ddpbench.report.pages.remedies import cures, use
from ddpbench.report.pages.status import ending_of
from ddpbench.report.pages.verdict import findings
from ddpbench.report.styled import GOOD, inked

HEALTHY = ("launch-bound", "sync-bound", "compute-bound")
"""Limits that no loader can help."""

PARTS = {"alone": "loader alone", "alone_single": "loader on one rank", "candidates": "other loaders"}
"""What the page calls an experiment that a Diagnosis names otherwise."""


def render_diagnosis(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the conclusion of ``job`` and what it rests on, as far as it was measured.

    That is some fifty lines. ``verbose`` adds what each cure is good for, notes, tables and hints, the checks that had nothing to
    say and the machine; ``quiet`` leaves the conclusion. ``path`` is where the record lies, ``None`` where it could not be saved.
    """
    page, real = page_of(console), diagnosed(job) or job.records[0]
    if quiet:
        show(console, findings(real, page))
        return
    sections: list[Sequence[Text]] = [[*_head(real, page)], [*ending_of(real, job, page)], [*findings(real, page)]]
    summary = summarise(real)
    if summary.step_ms is not None:
        case = Case(real, summary, experiments_of(job))
        sections += [*_evidence(case, job, page, verbose), [*_healthy(case, page), *cures(case, job, page, verbose)]]
    left_out = {PARTS.get(name, name): why for name, why in job.diagnosis.left_out.items()} if job.diagnosis else {}
    hints = verbose or any(check.effect == "blocks" for check in real.checks)
    last = [*unmeasured(left_out, page), *warnings({"": real}, page, verbose, hints), *([Text(str(path))] if path else [])]
    show_sections(console, [*sections, last, [*use(job, page)]])


def _head(record: Record, page: Page) -> Iterator[Text]:
    yield from titled("diagnose", record, page)
    data = [record.data.description] if record.data else []
    loader = [text for _, text in loader_items(record)]
    yield from labelled("data", [*data, *loader, f"batch {record.config.batch_size}"], page)


def _evidence(case: Case, job: Job, page: Page, verbose: bool) -> Iterator[Sequence[Text]]:
    record, given = case.record, supply(case)
    yield [*phases(record, case.summary, page)]
    if job.diagnosis is not None:
        found = ceilings(case, given)
        yield [*ceiling_table(record, found, job.diagnosis, page, verbose)]
        image = cost_table if verbose else cost_line
        start = starting(record, given, job.diagnosis, page) if verbose else []
        around = machine(record, job.diagnosis.surroundings, page, verbose)
        yield [*image(case, given, page), *needs(record, given, page), *utilised(record, found, page), *start, *around]


def _healthy(case: Case, page: Page) -> Iterator[Text]:
    if case.record.verdict and case.record.verdict.kind in HEALTHY:
        lost = f"{percent(case.data_wait_ms / case.step_ms, 2)} of a step"
        yield from inked(sentence("", f"nothing to do for the data: the loader keeps up, and costs {lost}", page), GOOD)
