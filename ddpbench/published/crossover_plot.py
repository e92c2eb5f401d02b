"""Pictures of two devices that cross: both devices' time over the size of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ddpbench.analysis.metrics import SECONDS
from ddpbench.published.crossing import crossing_of, device_label
from ddpbench.published.crossover_page import PUBLISHED_CROSSOVER
from ddpbench.published.publications import load_publication
from ddpbench.record.record import Job
from ddpbench.report.plot_data import CrossoverPlot, date_suffixes, device_name, make_curve
from ddpbench.report.plots import batched, numbered_stem

CROSSOVER_FAMILY = "disc-mlp"

MAX_CROSSOVERS = 3
"""Crossings on one pair of axes."""


def draw_crossovers(jobs: Sequence[Job], folder: Path) -> list[Path]:
    """Draws the crossings of ``jobs``, a few in one picture, into ``folder``; the files written. matplotlib is loaded here."""
    from ddpbench.report.draw import draw_crossover_plots, save_figure

    row = load_publication(PUBLISHED_CROSSOVER).experiments[0].rows[0]
    published = (row.crossover_parameters or 0, f"published: {row.crossover_parameters:,} parameters, {row.crossover_layers} layers")
    return [
        path
        for number, found in enumerate(batched(crossover_plots(jobs), MAX_CROSSOVERS), 1)
        for path in save_figure(
            draw_crossover_plots(CROSSOVER_FAMILY, found, published), folder, numbered_stem(f"{CROSSOVER_FAMILY}-crossover", number)
        )
    ]


def crossover_plots(jobs: Iterable[Job]) -> list[CrossoverPlot]:
    """One a job that timed models on two devices."""
    found = [(job.started, race) for job in jobs if (race := _crossover_plot(job))]
    dates = date_suffixes([((race.loser.name, race.winner.name), started) for started, race in found])
    return [race.with_date(date) for (_, race), date in zip(found, dates, strict=True)]


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
        crossing.parameters,
        crossing.low,
        crossing.high,
    )
