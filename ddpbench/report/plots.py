"""Plots of jobs, as PNG and SVG: time and memory over batch size, speed-ups, rooflines, crossovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ddpbench.record.errors import UsageError
from ddpbench.record.record import Job
from ddpbench.record.text import pluralize
from ddpbench.report.plot_data import (
    BatchSizePlot,
    SweepPoint,
    batch_size_plots,
    device_name,
    outdated_points,
    plot_title,
    points_by_workload,
    split_synthetic,
)
from ddpbench.report.plot_names import PlotNames, device_part, varied_part
from ddpbench.report.speedup_data import SpeedupPlot, comparisons, reference_choices, speedup_plots

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
    draw: Callable[[Sequence[Job], Path, PlotNames], list[Path]]


PLOTTERS: list[Plotter] = []
"""Packages above this floor add their own."""


def draw_plots(jobs: Sequence[Job], folder: Path, reference: str | None = None) -> list[Path]:
    """Draw all plots of ``jobs`` into ``folder``; return the written files in order.

    Jobs on different GPUs share a plot. Time and memory are drawn twice, with and without the spread of the rounds if there is any. A
    plot with too many curves is split. Jobs without two batch sizes, settings or devices, or a roofline, give no plot. Raises
    OSError if ``folder`` cannot be written, UsageError if no arm is called ``reference``. matplotlib is imported here, not with this
    module.
    """
    from ddpbench.report.draw import draw_batch_size_plot, save_figure
    from ddpbench.report.draw_speedup import draw_speedup_plots

    groups = _plotted_points(jobs)
    if reference is not None:
        _check_reference(reference, groups)
    names = PlotNames()
    written: list[Path] = []
    for cells in groups:
        for plot in batch_size_plots(plot_title(cells), cells):
            for part in split_batch_size_plot(plot):
                devices, varied = [curve.device for curve in part.curves], ["batch_size", *plot.varied]
                stem = [*_name_start(cells, devices), plot.name, varied_part(varied)]
                written += save_figure(draw_batch_size_plot(part, with_spread=False), folder, names.reserve(*stem))
                if any(any(curve.spread) for curve in part.curves):
                    written += save_figure(draw_batch_size_plot(part, with_spread=True), folder, names.reserve(*stem, "spread"))
        for panels in split_speedup_plots(speedup_plots(cells, reference)):
            stem = [*_name_start(cells, [panel.device for panel in panels]), "speed-up", varied_part(panels[0].varied)]
            written += save_figure(draw_speedup_plots(plot_title(cells), panels), folder, names.reserve(*stem))
    written += _draw_rooflines(jobs, folder, names)
    for plotter in PLOTTERS:
        written += plotter.draw([job for job in jobs if plotter.handles(job)], folder, names)
    return written


def _name_start(cells: Sequence[SweepPoint], devices: Sequence[str]) -> list[str]:
    """The first parts of a file name; synthetic data are named, since they are never on one plot with others."""
    return [cells[0].record.config.workload, device_part(devices), *(["synthetic"] if cells[0].is_synthetic else [])]


def _check_reference(reference: str, groups: Sequence[Sequence[SweepPoint]]) -> None:
    """Raise UsageError unless an arm of a speed-up plot is called ``reference``."""
    choices = [reference_choices(cells, reference) for cells in groups if speedup_plots(cells)]
    if not choices:
        raise UsageError(f"no arm can be the reference '{reference}': no speed-up is plotted", "drop --reference")
    if all(choices):
        names = dict.fromkeys(name for each in choices for name in each)
        raise UsageError(f"no compared arm is called '{reference}'", f"--reference accepts {'; '.join(names)}")


def _draw_rooflines(jobs: Sequence[Job], folder: Path, names: PlotNames) -> list[Path]:
    """One plot per record that has a roofline."""
    from ddpbench.report.draw import save_figure
    from ddpbench.report.draw_roofline import draw_roofline

    written: list[Path] = []
    for record in (record for job in sorted(jobs, key=lambda each: each.started) for record in job.records):
        if record.roofline:
            config = record.config
            stem = [config.workload, device_part([device_name(record)]), "roofline", config.precision, f"batch {config.batch_size}"]
            written += save_figure(draw_roofline(record, record.roofline), folder, names.reserve(*stem))
    return written


def left_out_reasons(jobs: Sequence[Job]) -> list[str]:
    """What the plots of ``jobs`` skip, and why."""
    reasons = [
        f"{job.kind} of {job.records[0].config.workload}, started {job.started}: control runs of a single setting"
        for job in jobs
        if _has_only_control_runs(job)
    ]
    groups = _plotted_points(jobs)
    reasons += _synthetic_reasons(groups)
    for cells in groups:
        title = plot_title(cells)
        if plots := batch_size_plots(title, cells):
            if plots[0].num_left_out:
                settings = pluralize(plots[0].num_left_out, "setting")
                reasons.append(f"{title}, over batch size: {settings} with a single batch size")
            reasons += [
                f"{title}, {cell.device}, {cell.setting}, batch {cell.batch}, started {cell.started}: replaced by a later measurement"
                for cell in outdated_points(cells)
            ]
    return reasons


def _synthetic_reasons(groups: Sequence[Sequence[SweepPoint]]) -> Iterator[str]:
    """Why no plot shows some arms: the data of the others in their job are loaded and theirs synthetic, or the other way round."""
    sides: dict[object, list[list[SweepPoint]]] = {}
    for cells in groups:
        for ours in comparisons(cells):
            sides.setdefault((cells[0].record.config.workload, ours[0].device, ours[0].job_number), []).append(ours)
    for ours in (ours for both in sides.values() if len(both) > 1 for ours in both):
        if not speedup_plots(ours) and not batch_size_plots("", ours):
            arms, first = "; ".join(dict.fromkeys(cell.setting for cell in ours)), ours[0]
            name = f"{first.record.config.workload}, {first.device}, {arms}, started {first.started}"
            yield f"{name}: not compared with the other arms, since a synthetic batch loads nothing"


def _plotted_points(jobs: Sequence[Job]) -> list[list[SweepPoint]]:
    """The points of each workload, those with loaded data apart from those with synthetic data."""
    plotted = [job for job in jobs if not _has_only_control_runs(job) and not any(plotter.handles(job) for plotter in PLOTTERS)]
    return [cells for points in points_by_workload(plotted).values() for cells in split_synthetic(points)]


def _has_only_control_runs(job: Job) -> bool:
    return job.kind in CONTROL_RUN_KINDS


def split_batch_size_plot(plot: BatchSizePlot) -> Iterator[BatchSizePlot]:
    """Split a plot into ones with at most MAX_DEVICES devices and MAX_SETTINGS settings."""
    devices, settings = (list(dict.fromkeys(getattr(curve, name) for curve in plot.curves)) for name in ("device", "setting"))
    for device_group in batched(devices, MAX_DEVICES):
        for setting_group in batched(settings, MAX_SETTINGS):
            curves = [curve for curve in plot.curves if curve.device in device_group and curve.setting in setting_group]
            if any(curve.x for curve in curves):
                yield replace(plot, curves=curves)


def split_speedup_plots(panels: Sequence[SpeedupPlot]) -> Iterator[list[SpeedupPlot]]:
    """Split panels into figures of comparisons of the same fields, with at most MAX_PANELS panels and MAX_SETTINGS settings."""
    by_fields: dict[tuple[str, ...], list[SpeedupPlot]] = {}
    for panel in panels:
        by_fields.setdefault(tuple(panel.varied), []).append(panel)
    for panel_group in (group for alike in by_fields.values() for group in batched(alike, MAX_PANELS)):
        for setting_group in batched(list(dict.fromkeys(setting for panel in panel_group for setting in panel.speedups)), MAX_SETTINGS):
            shown = [panel.subset(setting_group) for panel in panel_group]
            shown = [panel for panel in shown if any(any(each) for each in panel.speedups.values())]
            if shown:
                yield shown


def batched(items: Sequence[Item], n: int) -> Iterator[Sequence[Item]]:
    """Consecutive slices of at most ``n`` items."""
    return (items[at : at + n] for at in range(0, len(items), n))
