"""How jobs of published experiments and crossovers are shown."""

from __future__ import annotations

from collections.abc import Iterator

from ddpbench.published import crossover_plot
from ddpbench.published.crossing import crossing_of
from ddpbench.record.record import Job
from ddpbench.report import crossover, plots, reproduction
from ddpbench.report.grid import Grid
from ddpbench.report.pages import VIEWS, JobView


def register() -> None:
    """Adds the pages, tables and plots of these jobs to those that the report knows."""
    VIEWS["reproduce"] = JobView(reproduction.render_reproduction, _reproduction_tables, _reproduction_findings)
    VIEWS["crossover"] = JobView(crossover.render_crossover, crossover.grids, crossover.findings)
    plots.PLOTTERS[:] = [plots.Plotter(lambda job: crossing_of(job) is not None, crossover_plot.draw)]


def _reproduction_tables(job: Job) -> Iterator[Grid]:
    publication = reproduction.publication_of(job)
    yield from reproduction.grids(publication, job)
    if publication.id == crossover.PUBLISHED:
        yield from crossover.grids(job)


def _reproduction_findings(job: Job) -> Iterator[str]:
    if reproduction.publication_of(job).id == crossover.PUBLISHED:
        yield from crossover.findings(job)
    yield from reproduction.concluded(job)
