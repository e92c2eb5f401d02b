"""Plots of jobs, as PNG and SVG: time and memory over batch size, speed-ups, rooflines, crossovers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ddpbench.record.io import slug
from ddpbench.record.record import Job
from ddpbench.report.plot_data import (
    BatchSizePlot,
    SpeedupPlot,
    SweepPoint,
    batch_size_plots,
    outdated_points,
    points_by_workload,
    speedup_plots,
)

Item = TypeVar("Item")

CONTROL_RUN_KINDS = ("diagnose", "scale")
"""Kinds of job whose arms are one training under several conditions: there are no settings to compare."""

MAX_SETTINGS = 7
"""The most settings that one plot distinguishes without colour."""

MAX_DEVICES, MAX_PANELS = 4, 4
"""The most devices on one pair of axes, and panels in one figure."""


@dataclass(frozen=True)
class Plotter:
    """Draws jobs with a plot of their own, in place of curves over batch size."""

    handles: Callable[[Job], bool]
    draw: Callable[[Sequence[Job], Path], list[Path]]


PLOTTERS: list[Plotter] = []
"""Packages above this floor add their own."""


def draw_plots(jobs: Sequence[Job], folder: Path) -> list[Path]:
    """Draw all plots of ``jobs`` into ``folder``; return the written files in order.

    Jobs on different GPUs share a plot. Time and memory are drawn twice, with and without the spread of the rounds if there is any. A
    plot with too many curves is split. Jobs without two batch sizes, settings or devices, or a roofline, give no plot. Raises
    OSError if ``folder`` cannot be written. matplotlib is imported here, not with this module.
    """
    from ddpbench.report.draw import draw_batch_size_plot, draw_speedup_plots, save_figure

    written: list[Path] = []
    for workload, cells in _plotted_points(jobs).items():
        for plot in batch_size_plots(workload, cells):
            for number, part in enumerate(split_batch_size_plot(plot), 1):
                written += save_figure(draw_batch_size_plot(part, with_spread=False), folder, numbered_stem(plot.stem, number))
                if any(any(curve.spread) for curve in part.curves):
                    written += save_figure(
                        draw_batch_size_plot(part, with_spread=True), folder, numbered_stem(f"{plot.stem}-spread", number)
                    )
        for number, panels in enumerate(split_speedup_plots(speedup_plots(cells)), 1):
            written += save_figure(draw_speedup_plots(workload, panels), folder, numbered_stem(f"{workload}-speed-up", number))
    written += _draw_rooflines(jobs, folder)
    for plotter in PLOTTERS:
        written += plotter.draw([job for job in jobs if plotter.handles(job)], folder)
    return written


def _draw_rooflines(jobs: Sequence[Job], folder: Path) -> list[Path]:
    """One plot per record that has a roofline."""
    from ddpbench.report.draw import save_figure
    from ddpbench.report.draw_roofline import draw_roofline

    written: list[Path] = []
    drawn: Counter[str] = Counter()
    for record in (record for job in sorted(jobs, key=lambda each: each.started) for record in job.records):
        if record.roofline:
            stem = f"{record.config.workload}-{record.config.precision}-{record.config.batch_size}-roofline"
            drawn[stem] += 1
            written += save_figure(draw_roofline(record, record.roofline), folder, numbered_stem(stem, drawn[stem]))
    return written


def left_out_reasons(jobs: Sequence[Job]) -> list[str]:
    """What the plots of ``jobs`` skip, and why."""
    control_runs = [
        f"{job.kind} of {job.records[0].config.workload}, started {job.started}: control runs of a single setting"
        for job in jobs
        if _has_only_control_runs(job)
    ]
    return control_runs + [
        f"{workload}, {cell.device}, {cell.setting}, batch {cell.batch}, started {cell.started}: replaced by a later measurement"
        for workload, cells in _plotted_points(jobs).items()
        if batch_size_plots(workload, cells)
        for cell in outdated_points(cells)
    ]


def _plotted_points(jobs: Sequence[Job]) -> dict[str, list[SweepPoint]]:
    return points_by_workload(
        [job for job in jobs if not _has_only_control_runs(job) and not any(plotter.handles(job) for plotter in PLOTTERS)]
    )


def _has_only_control_runs(job: Job) -> bool:
    return job.kind in CONTROL_RUN_KINDS


def numbered_stem(name: str, number: int) -> str:
    return slug(name) if number == 1 else f"{slug(name)}-{number}"


def split_batch_size_plot(plot: BatchSizePlot) -> Iterator[BatchSizePlot]:
    """Split a plot into ones with at most MAX_DEVICES devices and MAX_SETTINGS settings."""
    devices, settings = (list(dict.fromkeys(getattr(curve, name) for curve in plot.curves)) for name in ("device", "setting"))
    for device_group in batched(devices, MAX_DEVICES):
        for setting_group in batched(settings, MAX_SETTINGS):
            curves = [curve for curve in plot.curves if curve.device in device_group and curve.setting in setting_group]
            if any(curve.x for curve in curves):
                yield replace(plot, curves=curves)


def split_speedup_plots(panels: Sequence[SpeedupPlot]) -> Iterator[list[SpeedupPlot]]:
    """Split panels into figures with at most MAX_PANELS panels and MAX_SETTINGS settings."""
    for panel_group in batched(panels, MAX_PANELS):
        for setting_group in batched(list(dict.fromkeys(setting for panel in panel_group for setting in panel.speedups)), MAX_SETTINGS):
            shown = [panel.subset(setting_group) for panel in panel_group]
            shown = [panel for panel in shown if any(any(each) for each in panel.speedups.values())]
            if shown:
                yield shown


def batched(items: Sequence[Item], n: int) -> Iterator[Sequence[Item]]:
    """Consecutive slices of at most ``n`` items."""
    return (items[at : at + n] for at in range(0, len(items), n))
