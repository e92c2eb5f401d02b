"""How jobs of published experiments and crossovers are shown."""

from __future__ import annotations

from collections.abc import Iterator

from ddpbench.published import crossover_page, reproduction_page
from ddpbench.published.crossing import crossing_of
from ddpbench.record.record import Job
from ddpbench.report import plots
from ddpbench.report.grid import Grid
from ddpbench.report.pages.registry import VIEWS, JobView


def register() -> None:
    """Register the pages, tables and plots of these jobs with the report."""
    VIEWS["reproduce"] = JobView(reproduction_page.render_reproduction, _reproduction_tables, _reproduction_findings)
    VIEWS["crossover"] = JobView(crossover_page.render_crossover, crossover_page.crossover_grids, crossover_page.crossover_findings)
    plots.PLOTTERS[:] = [plots.Plotter(lambda job: crossing_of(job) is not None, crossover_page.draw_crossovers)]


def _reproduction_tables(job: Job) -> Iterator[Grid]:
    publication = reproduction_page.publication_of(job)
    yield from reproduction_page.reproduction_grids(publication, job)
    if publication.id == crossover_page.PUBLISHED_CROSSOVER:
        yield from crossover_page.crossover_grids(job)


def _reproduction_findings(job: Job) -> Iterator[str]:
    if reproduction_page.publication_of(job).id == crossover_page.PUBLISHED_CROSSOVER:
        yield from crossover_page.crossover_findings(job)
    yield from reproduction_page.reproduction_findings(job)
