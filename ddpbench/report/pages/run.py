"""The page that a person reads: the conclusion first, the evidence after it, the file last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.summary import summarise
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Job, Record
from ddpbench.report.console import page_of, show, show_sections
from ddpbench.report.layout import Page, advice, columns
from ddpbench.report.pages.arms import arm_name, arms
from ddpbench.report.pages.best_arm import conclusion
from ddpbench.report.pages.checks import reasons, warnings
from ddpbench.report.pages.header import details, header, shared_header
from ddpbench.report.pages.loaders import loaders, loading
from ddpbench.report.pages.phases import phases
from ddpbench.report.pages.ranks import ranks
from ddpbench.report.pages.status import ending_words, endings
from ddpbench.report.pages.throughput import figure, figures
from ddpbench.report.pages.verdict import NO_LOADER, findings
from ddpbench.report.styled import LABEL, inked

Section = Sequence[Text]


def render_run(job: Job, console: Console, path: Path | None, verbose: bool = False, quiet: bool = False) -> None:
    """Prints ``job`` on ``console``: the page of its run or, of several arms, their table; whatever their status.

    ``verbose`` adds every setting, every check, a row for every rank, and a page for every arm; ``quiet`` leaves one line an arm,
    and with ``--strict`` one for each check that warns or blocks. ``path`` is where the record lies, ``None`` where it could not be
    saved.
    """
    page = page_of(console)
    if quiet:
        why = reasons(_named(job), page) if job.records[0].config.strict else ()
        show(console, [*map(Text, _figures_alone(job, page)), *why])
        return
    lone = len(job.records) == 1
    sections = _run(job.records[0], page, verbose) if lone else _several(job, page, verbose)
    *before, trust = sections
    show_sections(console, [*before, [*trust, *([Text(str(path))] if path else [])]])


def _run(record: Record, page: Page, verbose: bool) -> Iterator[Section]:
    summary = summarise(record)
    yield [*header(record, page), *(details(record, page) if verbose else ())]
    yield [*endings({"": record}, page)]
    yield [*findings(record, page)]
    yield [*figures(record, summary, page, verbose)]
    if record.headline or verbose:  # the time of a step that did not train is no evidence for anything
        yield [*phases(record, summary, page), *loading(record, page)]
        yield [*ranks(record, summary, page, verbose)]
    yield [*warnings({"": record}, page, verbose)]


def _several(job: Job, page: Page, verbose: bool) -> Iterator[Section]:
    named = _named(job)
    yield [*shared_header(job.records, page)]
    yield [*conclusion(job, page)]
    synthetic = all(record.config.loader == SYNTHETIC for record in job.records)
    yield [*arms(job, page), *(inked(advice("data  ", NO_LOADER, page), LABEL, len("data")) if synthetic else ())]
    yield [*loaders(job, page)]
    yield [*endings(named, page)]
    yield [*warnings(named, page)]
    if verbose:
        for name, record in named.items():
            yield inked([f"--- {name} ---"], LABEL)
            yield from _run(record, page, verbose)


def _named(job: Job) -> Mapping[str, Record]:
    """The records by the names of their arms; a lone one has none."""
    return {arm_name(record.config, job.swept) if len(job.records) > 1 else "": record for record in job.records}


def _figures_alone(job: Job, page: Page) -> list[str]:
    """A line an arm: its name where there are several, its figure, and how it ended where it did not end well."""
    rows = [[figure(record), *([] if record.status == "ok" else [ending_words(record)])] for record in job.records]
    if len(rows) == 1:
        return ["   ".join(rows[0])]
    named = [[arm_name(record.config, job.swept), "   ".join(row)] for record, row in zip(job.records, rows, strict=True)]
    return columns(named, "<<", page)
