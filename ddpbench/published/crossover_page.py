"""The page and the plot of a crossover: time over model size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.metrics import SECONDS
from ddpbench.analysis.stats import PairedRatio
from ddpbench.published.crossing import Crossing, crossing_of, describe_crossing, device_label, missing_depths
from ddpbench.published.publications import load_publication
from ddpbench.record.record import Job
from ddpbench.record.text import pluralize
from ddpbench.report.console import page_for, print_sections, record_path_lines
from ddpbench.report.format import format_interval, format_significant
from ddpbench.report.grid import Grid, GridColumn, format_metric, grid_lines
from ddpbench.report.layout import CAUTION, LABEL, Page, styled, wrap_text
from ddpbench.report.messages.roles import role_name
from ddpbench.report.pages.checks import check_lines
from ddpbench.report.pages.header import machine_text
from ddpbench.report.pages.status import resume_hint_lines, status_lines
from ddpbench.report.plot_data import CrossoverPlot, date_suffixes, device_name, make_curve
from ddpbench.report.plot_names import PlotNames, device_part, varied_part
from ddpbench.report.plots import batched

PUBLISHED_CROSSOVER = "disc-mlp-cpu-vs-gpu"


def render_crossover(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print the crossing of the two devices of ``job``, its models and its errors.

    ``verbose`` adds the checks that passed; ``quiet`` prints the crossing only. ``path`` is the record's file, None if it could not
    be saved.
    """
    page = page_for(console, verbose)
    if quiet:
        print_sections(console, [[*_crossing_lines(crossing_of(job), page)]])
        return
    named = {
        " ".join(filter(None, [record.config.workload, role_name(record.role) or record.environment.device_type])): record
        for record in job.records
    }
    sections = [
        styled(
            wrap_text(
                "", f"ddpbench crossover  {'; '.join(dict.fromkeys(machine_text(record.environment) for record in job.records))}", page
            ),
            LABEL,
        ),
        [*crossover_lines(job, page)],
        [*status_lines(named, page), *resume_hint_lines(job, page)],
        [*check_lines(named, page), *record_path_lines(path, page)],
    ]
    print_sections(console, sections)


def crossover_lines(job: Job, page: Page) -> Iterator[Text]:
    """The crossing, the published one if a CPU and a GPU were compared, and the table of models."""
    crossing = crossing_of(job)
    yield from _crossing_lines(crossing, page)
    for text in _published_texts(crossing):
        yield from styled(wrap_text("", text, page))
    if crossing is not None:
        yield Text()
        yield from grid_lines(*_table(crossing), page)
    if missing := missing_depths(job, [point.layers for point in crossing.points] if crossing else []):
        yield from styled(wrap_text("", missing, page), CAUTION)


def crossover_grids(job: Job) -> list[Grid]:
    """The table of models; empty if no model was timed on both devices."""
    found = crossing_of(job)
    return [_table(found)] if found else []


def crossover_findings(job: Job) -> list[str]:
    """The crossing here, and the published one if a CPU and a GPU were compared."""
    crossing = crossing_of(job)
    return [crossing_text(crossing), *_published_texts(crossing)]


def _published_texts(crossing: Crossing | None) -> Iterator[str]:
    """The published crossing, beside one of a CPU and a GPU."""
    if crossing is None or not crossing.is_cpu_vs_gpu:
        return
    publication = load_publication(PUBLISHED_CROSSOVER)
    row = publication.experiments[0].rows[0]
    size = f"{row.crossover_parameters:,} parameters on, {row.crossover_layers} layers"
    yield f"published: GPU is faster than CPU from {size} ({publication.source})"


def crossing_text(crossing: Crossing | None) -> str:
    return describe_crossing(crossing) if crossing else "no crossing: no model was timed on two devices"


def _crossing_lines(crossing: Crossing | None, page: Page) -> list[Text]:
    return styled(wrap_text("", crossing_text(crossing), page), LABEL if crossing else CAUTION)


def _table(crossing: Crossing) -> Grid:
    points = crossing.points
    names = [
        GridColumn("layers", [str(point.layers) for point in points]),
        GridColumn("parameters", [f"{point.parameters:,}" for point in points]),
    ]
    only_ranges = not any(point.ratio.has_interval for point in points)
    values = [
        GridColumn(crossing.loser, [format_metric(median(point.first_s), SECONDS) for point in points]),
        GridColumn(crossing.winner, [format_metric(median(point.second_s), SECONDS) for point in points]),
        GridColumn("times as fast", [_speedup_cell(point.ratio, only_ranges) for point in points]),
    ]
    interval_text = ""
    if any(point.ratio.low < point.ratio.high for point in points):
        interval_text = " (range of the rounds)" if only_ranges else " (95% interval)"
    return Grid(f"time of a training (s), median; times as fast as the first{interval_text}", names, values)


def _speedup_cell(ratio: PairedRatio, only_ranges: bool) -> str:
    """The speed-up: one over the ratio of the times.

    A range says so if it stands among confidence intervals.
    """
    center, low, high = format_interval(1 / ratio.center, 1 / ratio.high, 1 / ratio.low, width_digits=1)
    rounds = f"{pluralize(ratio.pairs, 'round')}: " if not (ratio.has_interval or only_ranges) else ""
    return f"{center} ({rounds}{low} to {high})" if low != high else format_significant(1 / ratio.center)


CROSSOVER_FAMILY = "disc-mlp"

MAX_CROSSOVERS = 3
"""The most crossings on one pair of axes."""


def draw_crossovers(jobs: Sequence[Job], folder: Path, names: PlotNames) -> list[Path]:
    """Draw the crossings of ``jobs`` into ``folder``; return the files written.

    A picture shows at most MAX_CROSSOVERS. matplotlib is imported here, not with this module.
    """
    from ddpbench.report.draw import draw_crossover_plots, save_figure

    row = load_publication(PUBLISHED_CROSSOVER).experiments[0].rows[0]
    published = (row.crossover_parameters or 0, f"published: {row.crossover_parameters:,} parameters, {row.crossover_layers} layers")
    written: list[Path] = []
    for found in batched(crossover_plots(jobs), MAX_CROSSOVERS):
        stem = names.reserve(CROSSOVER_FAMILY, _sides(found), "time", varied_part(["model-size"]))
        written += save_figure(draw_crossover_plots(CROSSOVER_FAMILY, found, published), folder, stem)
    return written


def _sides(plots: Sequence[CrossoverPlot]) -> str:
    """The compared devices for a file name: ``CPU, 16 threads vs H200``."""
    curves = [curve for plot in plots for curve in (plot.loser, plot.winner)]
    sides = (device_part([curve.device]) if curve.setting == "GPU" else curve.setting for curve in curves)
    return " vs ".join(dict.fromkeys(sides))


def crossover_plots(jobs: Iterable[Job]) -> list[CrossoverPlot]:
    """One plot per job that timed models on two devices."""
    found = [(job.started, plot) for job in jobs if (plot := _crossover_plot(job))]
    dates = date_suffixes([((plot.loser.name, plot.winner.name), started) for started, plot in found])
    return [plot.with_date(date) for (_, plot), date in zip(found, dates, strict=True)]


def _crossover_plot(job: Job) -> CrossoverPlot | None:
    crossing = crossing_of(job)
    if crossing is None:
        return None
    devices = {device_label(record): device_name(record) for record in job.records}
    points = crossing.points
    parameters = [point.parameters for point in points]
    return CrossoverPlot(
        make_curve(devices[crossing.loser], crossing.loser, parameters, [point.first_s for point in points], SECONDS),
        make_curve(devices[crossing.winner], crossing.winner, parameters, [point.second_s for point in points], SECONDS),
        [point.layers for point in points],
        crossing.parameters if crossing.is_clear else None,
        crossing.low,
        crossing.high,
    )
