"""Pictures of jobs, as PNG and SVG: time and memory over batch size, speed-ups, the crossing of two devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddpbench.analysis.crossover import crossing_of
from ddpbench.record.published import load
from ddpbench.record.record import Job, slug
from ddpbench.report.crossover import PUBLISHED
from ddpbench.report.pictures import bars, cells_by_workload, charts, races

CROSSOVER = "disc-mlp"


def plot(jobs: Sequence[Job], folder: Path) -> list[Path]:
    """Draws everything that ``jobs`` have, those of several GPUs in one picture, into ``folder``; the files written, in order.

    Time and memory are drawn twice, with and without the spread of the rounds where there is any. Nothing is drawn, and
    nothing returned, of jobs that hold neither two batch sizes, nor two settings, nor two devices. Raises OSError where
    ``folder`` cannot be written. matplotlib is loaded here, not with this module.
    """
    from ddpbench.report.canvas import draw_bars, draw_chart, draw_races, save

    written: list[Path] = []
    for workload, cells in cells_by_workload([job for job in jobs if crossing_of(job) is None]).items():
        for chart in charts(workload, cells):
            written += save(draw_chart(chart, with_spread=False), folder, slug(chart.stem))
            if any(any(curve.spread) for curve in chart.curves):
                written += save(draw_chart(chart, with_spread=True), folder, f"{slug(chart.stem)}-spread")
        if panels := bars(cells):
            written += save(draw_bars(workload, panels), folder, f"{slug(workload)}-speed-up")
    if found := races(jobs):
        row = load(PUBLISHED).experiments[0].rows[0]
        published = (row.crossover_parameters or 0, f"published: {row.crossover_parameters:,} parameters, {row.crossover_layers} layers")
        written += save(draw_races(CROSSOVER, found, published), folder, f"{CROSSOVER}-crossover")
    return written
