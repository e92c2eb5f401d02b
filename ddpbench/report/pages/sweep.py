"""A sweep as tables, one a figure: rows the settings, columns the precisions, mean and standard deviation; then medians."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.metrics import Metric, accuracy_metric, memory_metric, time_or_speed_metric
from ddpbench.record.record import Job, Record
from ddpbench.report.console import page_for, print_sections
from ddpbench.report.grid import Grid, GridColumn, grid_lines, mean_cell, median_cell
from ddpbench.report.layout import LABEL, Page, styled, wrap_command
from ddpbench.report.pages.arms import arm_name, arm_values
from ddpbench.report.pages.checks import check_lines
from ddpbench.report.pages.header import labelled_lines, shared_header_lines
from ddpbench.report.pages.status import resume_hint_lines, status_lines

COLUMN_FIELD = "precision"
"""The field whose values head the columns; every other swept field names the rows."""

CellFormatter = Callable[[Metric, Record | None], str]


def render_sweep(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the tables of ``job``, one Record a cell; then how cells ended that did not end well, and the checks.

    ``verbose`` adds the checks that had nothing to say, ``quiet`` leaves the tables. ``path`` is where the record lies,
    ``None`` where it could not be saved.
    """
    page = page_for(console)
    if quiet:
        print_sections(console, ([*table] for table in sweep_tables(job, page)))
        return
    named = {arm_name(record.config, job.swept): record for record in job.records}
    sections = [
        [*shared_header_lines(job.records, page), *_shard_lines(job, path, page)],
        *([*table] for table in sweep_tables(job, page)),
        [*status_lines(named, page), *resume_hint_lines(job, page)],
        [*check_lines(named, page, verbose)],
        [Text(str(path))] if path else [],
    ]
    print_sections(console, sections)


def sweep_tables(job: Job, page: Page) -> Iterator[Iterator[Text]]:
    return (grid_lines(*each, page) for each in sweep_grids(job))


def sweep_grids(job: Job) -> Iterator[Grid]:
    """A table of means a measure that any cell knows, then one of medians for those whose rounds tell an interval.

    Trainings of different length are compared by their speed. Memory has no interval: its peak is what a training needs, and not a
    figure that rounds scatter about.
    """
    learnt, lasting = accuracy_metric(job.records), time_or_speed_metric(job.records)
    for measure in (learnt, lasting, memory_metric(job.records)):
        if not any(measure.values(record) for record in job.records):
            continue
        repeated = any(len(measure.values(record)) > 1 for record in job.records)
        yield _table(f"{measure.heading}{', mean (standard deviation)' if repeated else ''}", measure, mean_cell, job)
    for measure in (learnt, lasting):
        if any((found := measure.median_and_interval(record)) and found.low < found.high for record in job.records):
            yield _table(f"{measure.heading}, median (95% interval of the mean)", measure, median_cell, job)


def _shard_lines(job: Job, path: Path | None, page: Page) -> Iterator[Text]:
    """Which parts of a sweep these are, and where each was measured; of one part, what shows all. Nothing of a sweep in one piece."""
    share = job.sweep_shard
    if share is None:
        return
    hosts = {share.part_for(place): record.environment.placements[0].host for place, record in zip(share.indices, job.records, strict=True)}
    told = [f"{number} of {share.num_parts} on {hosts[number]}" for number in share.parts]
    alone = len(told) == 1 < share.num_parts
    missing = [] if alone or not share.missing_parts else [f"not there: {', '.join(map(str, share.missing_parts))}"]
    yield from labelled_lines("part", [*told, *missing], page)
    if alone and path:
        yield from styled(wrap_command("all   ", shlex.join(["ddpbench", "report", str(path.parent)]), page), LABEL, len("all"))


def _table(title: str, metric: Metric, cell: CellFormatter, job: Job) -> Grid:
    fields = [name for name in job.swept if name != COLUMN_FIELD]
    rows = list(dict.fromkeys(tuple(arm_values(record.config, fields)) for record in job.records))
    names = [GridColumn(field.replace("_", "-"), [row[at] for row in rows], _align(field, job)) for at, field in enumerate(fields)]
    values = [
        GridColumn(heading, [cell(metric, _find(job, fields, row, heading)) for row in rows])
        for heading in dict.fromkeys(map(_heading, job.records))
    ]
    return Grid(title, names, values)


def _find(job: Job, fields: Sequence[str], row: Sequence[str], heading: str) -> Record | None:
    return next(
        (each for each in job.records if _heading(each) == heading and tuple(arm_values(each.config, fields)) == tuple(row)),
        None,
    )


def _heading(record: Record) -> str:
    return ", ".join(filter(None, [record.config.precision, record.label]))


def _align(field: str, job: Job) -> str:
    return ">" if all(isinstance(getattr(record.config, field), int | float) for record in job.records) else "<"
