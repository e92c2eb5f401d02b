"""A sweep as one table per metric: settings as rows, precisions as columns."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.metrics import Metric, accuracy_metric, memory_metric, time_or_speed_metric
from ddpbench.record.record import Job, Record
from ddpbench.report.console import page_for, print_sections, record_path_lines
from ddpbench.report.grid import Grid, GridColumn, grid_lines, mean_cell, median_cell
from ddpbench.report.layout import LABEL, Page, styled, wrap_command
from ddpbench.report.messages.arms import arm_name, arm_values
from ddpbench.report.messages.roles import role_name
from ddpbench.report.pages.arms import best_arm_lines
from ddpbench.report.pages.checks import check_lines
from ddpbench.report.pages.header import labelled_lines, shared_header_lines
from ddpbench.report.pages.status import resume_hint_lines, status_lines

COLUMN_FIELD = "precision"
"""The field whose values are the column headings; the other swept fields name the rows."""

CellFormatter = Callable[[Metric, Record | None], str]


def render_sweep(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print the fastest arm of ``job``, its tables, then the arms that did not end well and the checks.

    ``verbose`` adds the checks that passed; ``quiet`` prints the tables only. ``path`` is the record's file, None if it could not be
    saved.
    """
    page = page_for(console, verbose)
    if quiet:
        print_sections(console, ([*table] for table in sweep_tables(job, page)))
        return
    named = {arm_name(record.config, job.swept): record for record in job.records}
    is_merged = job.sweep_shard is not None and len(job.sweep_shard.parts) > 1
    order = "parts in separate jobs" if is_merged else "interleaved"
    sections = [
        [*shared_header_lines(job.records, page, order), *_shard_lines(job, path, page)],
        [*best_arm_lines(job, page)],
        *([*table] for table in sweep_tables(job, page)),
        [*status_lines(named, page), *resume_hint_lines(job, page)],
        [*check_lines(named, page)],
        record_path_lines(path, page),
    ]
    print_sections(console, sections)


def sweep_tables(job: Job, page: Page) -> Iterator[Iterator[Text]]:
    return (grid_lines(*each, page) for each in sweep_grids(job))


def sweep_grids(job: Job) -> Iterator[Grid]:
    """One table per measured metric: medians with their interval if it has one, else means.

    Trainings of different length are compared by speed. Memory has no interval: its peak is a requirement, not a value that rounds
    scatter about.
    """
    memory = memory_metric(job.records)
    for metric in (accuracy_metric(job.records), time_or_speed_metric(job.records), memory):
        if metric is not memory and any((found := metric.median_and_interval(record)) and found.low < found.high for record in job.records):
            yield _table(f"{metric.heading}, median (95% interval of the mean)", metric, median_cell, job)
        elif any(metric.values(record) for record in job.records):
            repeated = any(len(metric.values(record)) > 1 for record in job.records)
            yield _table(f"{metric.heading}{', mean (standard deviation)' if repeated else ''}", metric, mean_cell, job)


def _shard_lines(job: Job, path: Path | None, page: Page) -> Iterator[Text]:
    """The shards of a sweep in this job, their hosts, and the missing ones.

    A single shard also gets the command that shows all. Empty if the sweep is not sharded.
    """
    shard = job.sweep_shard
    if shard is None:
        return
    hosts = {shard.part_for(index): record.environment.placements[0].host for index, record in zip(shard.indices, job.records, strict=True)}
    items = [f"{number} of {shard.num_parts} on {hosts[number]}" for number in shard.parts]
    is_single = len(items) == 1 < shard.num_parts
    missing = [] if is_single or not shard.missing_parts else [f"missing: {', '.join(map(str, shard.missing_parts))}"]
    yield from labelled_lines("part", [*items, *missing], page)
    if is_single and path:
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
    return ", ".join(filter(None, [record.config.precision, role_name(record.role)]))


def _align(field: str, job: Job) -> str:
    return ">" if all(isinstance(getattr(record.config, field), int | float) for record in job.records) else "<"
