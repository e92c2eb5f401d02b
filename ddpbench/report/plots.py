"""Pictures of jobs, as PNG and SVG: time and memory over batch size, speed-ups, the crossing of two devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ddpbench.record.record import Job, slug
from ddpbench.report.plot_data import Bars, Cell, Chart, bars, cells_by_workload, charts, outdated

Thing = TypeVar("Thing")

TAKEN_APART = ("diagnose", "scale")
"""Kinds of job whose arms are one training under several conditions, such as the all-reduce without it: no settings to choose from."""

AT_ONCE = 7
"""Settings that one picture tells apart without colour."""

DEVICES, PANELS = 4, 4
"""Devices on one pair of axes; panels of one picture."""


@dataclass(frozen=True)
class Plotter:
    """Draws jobs that have a picture of their own, in place of curves over batch size."""

    handles: Callable[[Job], bool]
    draw: Callable[[Sequence[Job], Path], list[Path]]


PLOTTERS: list[Plotter] = []
"""Experiments above this floor add their own."""


def plot(jobs: Sequence[Job], folder: Path) -> list[Path]:
    """Draws everything that ``jobs`` have, those of several GPUs in one picture, into ``folder``; the files written, in order.

    Time and memory are drawn twice, with and without the spread of the rounds where there is any. What is too much for one picture
    goes on in another. Nothing is drawn, and nothing returned, of jobs that hold neither two batch sizes, nor two settings, nor two
    devices. Raises OSError where ``folder`` cannot be written. matplotlib is loaded here, not with this module.
    """
    from ddpbench.report.draw import draw_bars, draw_chart, save

    written: list[Path] = []
    for workload, cells in _drawn(jobs).items():
        for chart in charts(workload, cells):
            for number, page in enumerate(pages_of_curves(chart), 1):
                written += save(draw_chart(page, with_spread=False), folder, stem_of(chart.stem, number))
                if any(any(curve.spread) for curve in page.curves):
                    written += save(draw_chart(page, with_spread=True), folder, stem_of(f"{chart.stem}-spread", number))
        for number, panels in enumerate(pages_of_bars(bars(cells)), 1):
            written += save(draw_bars(workload, panels), folder, stem_of(f"{workload}-speed-up", number))
    for plotter in PLOTTERS:
        written += plotter.draw([job for job in jobs if plotter.handles(job)], folder)
    return written


def left_out(jobs: Sequence[Job]) -> list[str]:
    """What no picture shows of ``jobs``, and why."""
    apart = [
        f"the {job.kind} of {job.records[0].config.workload}, of {job.started}: its arms are no settings" for job in jobs if _apart(job)
    ]
    return apart + [
        f"{workload}, {cell.device}, {cell.setting}, batch {cell.batch}, of {cell.started}: it was measured again later"
        for workload, cells in _drawn(jobs).items()
        if charts(workload, cells)
        for cell in outdated(cells)
    ]


def _drawn(jobs: Sequence[Job]) -> dict[str, list[Cell]]:
    return cells_by_workload([job for job in jobs if not _apart(job) and not any(plotter.handles(job) for plotter in PLOTTERS)])


def _apart(job: Job) -> bool:
    return job.kind in TAKEN_APART


def stem_of(name: str, number: int) -> str:
    return slug(name) if number == 1 else f"{slug(name)}-{number}"


def pages_of_curves(chart: Chart) -> Iterator[Chart]:
    """At most so many devices and settings in each as can be told apart."""
    devices, settings = (list(dict.fromkeys(getattr(curve, name) for curve in chart.curves)) for name in ("device", "setting"))
    for some in batched(devices, DEVICES):
        for few in batched(settings, AT_ONCE):
            curves = [curve for curve in chart.curves if curve.device in some and curve.setting in few]
            if any(curve.x for curve in curves):
                yield replace(chart, curves=curves)


def pages_of_bars(panels: Sequence[Bars]) -> Iterator[list[Bars]]:
    """At most so many panels and settings in each as can be told apart."""
    for some in batched(panels, PANELS):
        for few in batched(list(dict.fromkeys(setting for panel in some for setting in panel.speedups)), AT_ONCE):
            shown = [panel.of(few) for panel in some]
            shown = [panel for panel in shown if any(any(each) for each in panel.speedups.values())]
            if shown:
                yield shown


def batched(things: Sequence[Thing], most: int) -> Iterator[Sequence[Thing]]:
    """In their order, at most so many at a time."""
    return (things[at : at + most] for at in range(0, len(things), most))
