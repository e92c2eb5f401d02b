"""Two devices over the size of a model: their times, and from which model on one is faster than the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.metrics import SECONDS
from ddpbench.analysis.ratio import Ratio
from ddpbench.published.crossing import Crossing, conclusion, crossing_of, missing
from ddpbench.published.publications import load
from ddpbench.record.record import Job
from ddpbench.record.text import count
from ddpbench.report.console import page_of, show_sections
from ddpbench.report.format import interval, significant
from ddpbench.report.grid import Column, Grid, grid, number
from ddpbench.report.layout import Page, sentence
from ddpbench.report.pages.checks import warnings
from ddpbench.report.pages.header import place
from ddpbench.report.pages.status import continued, endings
from ddpbench.report.styled import CAUTION, LABEL, inked

PUBLISHED = "disc-mlp-cpu-vs-gpu"


def render_crossover(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the crossing of the two devices of ``job``, its models, and what went wrong.

    ``verbose`` adds the checks that had nothing to say, ``quiet`` leaves the conclusion. ``path`` is where the record lies,
    ``None`` where it could not be saved.
    """
    page = page_of(console)
    if quiet:
        show_sections(console, [[*_concluded(crossing_of(job), page)]])
        return
    named = {
        " ".join(filter(None, [record.config.workload, record.label or record.environment.device_type])): record for record in job.records
    }
    sections = [
        inked(
            sentence("", f"ddpbench crossover  {'; '.join(dict.fromkeys(place(record.environment) for record in job.records))}", page),
            LABEL,
        ),
        [*crossover(job, page)],
        [*endings(named, page), *continued(job, page)],
        [*warnings(named, page, verbose)],
        [Text(str(path))] if path else [],
    ]
    show_sections(console, sections)


def crossover(job: Job, page: Page) -> Iterator[Text]:
    """The conclusion, the published one, and the table of models."""
    found = crossing_of(job)
    yield from _concluded(found, page)
    yield from inked(sentence("", published_words(), page))
    if found is not None:
        yield Text()
        yield from grid(*_table(found), page)
    if lacking := missing(job, [point.layers for point in found.points] if found else []):
        yield from inked(sentence("", lacking, page), CAUTION)


def grids(job: Job) -> list[Grid]:
    """The table of models; none where none was timed on both devices."""
    found = crossing_of(job)
    return [_table(found)] if found else []


def findings(job: Job) -> list[str]:
    """Where the two devices cross here, and where they were published to cross."""
    return [concluded(crossing_of(job)), published_words()]


def concluded(found: Crossing | None) -> str:
    return conclusion(found) if found else "no crossing: no model has been timed on two devices"


def _concluded(found: Crossing | None, page: Page) -> list[Text]:
    return inked(sentence("", concluded(found), page), LABEL if found else CAUTION)


def published_words() -> str:
    publication = load(PUBLISHED)
    row = publication.experiments[0].rows[0]
    where = f"{row.crossover_parameters:,} parameters on, {row.crossover_layers} layers"
    return f"published: GPU is faster than CPU from {where} ({publication.source})"


def _table(found: Crossing) -> Grid:
    points = found.points
    names = [
        Column("layers", [str(point.layers) for point in points]),
        Column("parameters", [f"{point.parameters:,}" for point in points]),
    ]
    only_ranges = not any(point.ratio.has_interval for point in points)
    values = [
        Column(found.loser, [number(median(point.first_s), SECONDS) for point in points]),
        Column(found.winner, [number(median(point.second_s), SECONDS) for point in points]),
        Column("times as fast", [_times(point.ratio, only_ranges) for point in points]),
    ]
    within = ""
    if any(point.ratio.low < point.ratio.high for point in points):
        within = " (range of the rounds)" if only_ranges else " (95% interval)"
    return Grid(f"time of a training (s), median; times as fast as the first{within}", names, values)


def _times(ratio: Ratio, only_ranges: bool) -> str:
    """How many times as fast: one over the ratio of the times. A range that stands among intervals is said to be one."""
    center, low, high = interval(1 / ratio.center, 1 / ratio.high, 1 / ratio.low, width_digits=1)
    rounds = f"{count(ratio.pairs, 'round')}: " if not (ratio.has_interval or only_ranges) else ""
    return f"{center} ({rounds}{low} to {high})" if low != high else significant(1 / ratio.center)
