"""Pictures of two devices that cross: both devices' time over the size of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ddpbench.analysis.metrics import SECONDS
from ddpbench.published.crossing import crossing_of, side
from ddpbench.published.crossover_page import PUBLISHED
from ddpbench.published.publications import load
from ddpbench.record.record import Job
from ddpbench.report.plot_data import Race, curve_of, dates_of, device_name
from ddpbench.report.plots import batched, stem_of

CROSSOVER = "disc-mlp"

RACES = 3
"""Crossings on one pair of axes."""


def draw(jobs: Sequence[Job], folder: Path) -> list[Path]:
    """Draws the crossings of ``jobs``, a few in one picture, into ``folder``; the files written. matplotlib is loaded here."""
    from ddpbench.report.draw import draw_races, save

    row = load(PUBLISHED).experiments[0].rows[0]
    published = (row.crossover_parameters or 0, f"published: {row.crossover_parameters:,} parameters, {row.crossover_layers} layers")
    return [
        path
        for number, found in enumerate(batched(races(jobs), RACES), 1)
        for path in save(draw_races(CROSSOVER, found, published), folder, stem_of(f"{CROSSOVER}-crossover", number))
    ]


def races(jobs: Iterable[Job]) -> list[Race]:
    """One a job that timed models on two devices."""
    found = [(job.started, race) for job in jobs if (race := _race(job))]
    dates = dates_of([((race.loser.name, race.winner.name), started) for started, race in found])
    return [race.on(date) for (_, race), date in zip(found, dates, strict=True)]


def _race(job: Job) -> Race | None:
    crossing = crossing_of(job)
    if crossing is None:
        return None
    devices = {side(record): device_name(record) for record in job.records}
    points = crossing.points
    parameters = [point.parameters for point in points]
    return Race(
        curve_of(devices[crossing.loser], crossing.loser, parameters, [point.first_s for point in points], SECONDS),
        curve_of(devices[crossing.winner], crossing.winner, parameters, [point.second_s for point in points], SECONDS),
        [point.layers for point in points],
        crossing.parameters,
        crossing.low,
        crossing.high,
    )
