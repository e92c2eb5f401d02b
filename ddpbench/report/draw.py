"""Draws figures with matplotlib, which only the modules ``draw*`` import.

Legible without colour: markers, line styles, hatches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from math import log10
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator

from ddpbench.record.io import atomic_write
from ddpbench.record.text import format_3sig, printable
from ddpbench.report.plot_data import BatchSizePlot, CrossoverPlot, PlotCurve

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
"""The palette of Okabe and Ito, safe for colour-blind readers. Colour is only a second cue here."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
FILLS: tuple[Literal["full", "none", "left", "bottom"], ...] = ("full", "none", "left", "bottom")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo")
PNG_DPI = 150

CURVE_OFFSET_OCTAVES = 0.02
"""Shift in octaves of batch size between two curves, so that none hides another."""

LOG_SCALE_MIN_RATIO = 8
"""Value range (maximum over minimum) above which the axis is logarithmic, else it starts at 0."""

OOM_LABEL = "out of memory"

OOM_MARKER: dict[str, Any] = {
    "marker": "X",
    "color": "black",
    "markerfacecolor": "white",
    "markersize": 13,
    "linestyle": "none",
    "zorder": 6,
}
"""Drawn in place of a missing value."""

LEGEND_WIDTH, LEGEND_HANDLE_WIDTH = 108, 7
"""Characters that fit into a legend as wide as the figure, and those that a handle takes."""

OOM_MARKER_HEIGHT, OOM_MARKER_SPACING = 0.035, 0.07
"""Height of the lowest cross, and distance to the next one above it, as fractions of the axes."""

RC_PARAMS = {
    "svg.hashsalt": "ddpbench",
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
}


def save_figure(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg`` into ``folder``, creating it if needed.

    The same figure gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}.png", folder / f"{stem}.svg"]
    with matplotlib.rc_context(RC_PARAMS):  # type: ignore[arg-type]
        for path, settings in zip(paths, ({"dpi": PNG_DPI, "metadata": {"Software": None}}, {"metadata": {"Date": None}}), strict=True):
            content = BytesIO()
            figure.savefig(content, format=path.suffix[1:], **settings)  # type: ignore[arg-type]
            atomic_write(path, content.getvalue())  # on a full disk the old picture stays
    return paths


def draw_batch_size_plot(chart: BatchSizePlot, with_spread: bool) -> Figure:
    """Curves over batch size: colour and marker per setting, line style per device."""
    figure, axes = _new_figure(8.0, 4.8)
    devices = list(dict.fromkeys(curve.device for curve in chart.curves))
    settings = list(dict.fromkeys(curve.setting for curve in chart.curves))
    for at, curve in enumerate(chart.curves):
        shift = 2 ** (CURVE_OFFSET_OCTAVES * (at - (len(chart.curves) - 1) / 2))
        moved = replace(curve, x=[shift * size for size in curve.x])
        _draw_curve(axes, moved, settings.index(curve.setting), devices.index(curve.device), with_spread)
    _mark_out_of_memory(axes, chart.curves, settings, devices)
    sizes = sorted({size for curve in chart.curves for size in (*curve.x, *curve.out_of_memory_x)})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{size:g}" for size in sizes]))
    axes.xaxis.set_minor_locator(NullLocator())
    heights = [height for curve in chart.curves for height in curve.y]
    if max(heights) > LOG_SCALE_MIN_RATIO * min(heights):
        axes.set_yscale("log")
        set_log_ticks(axes.yaxis, heights)
    else:
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel(batch_label(chart.item))
    axes.set_ylabel(escape_mathtext(chart.y_label))
    figure.suptitle(
        f"{escape_mathtext(chart.title)}{', mean and standard deviation over rounds' if with_spread else ', mean over rounds'}",
        fontsize=12,
    )
    signs, _ = axes.get_legend_handles_labels()
    crossed = [Line2D([], [], **OOM_MARKER, label=OOM_LABEL)] if any(curve.out_of_memory_x for curve in chart.curves) else []
    add_legend(figure, [*signs, *crossed], max_columns=2)
    return figure


def add_legend(figure: Figure, signs: Sequence[Any], max_columns: int) -> None:
    """A legend below the axes, in as many columns as fit; long labels are wrapped."""
    for sign in signs:
        sign.set_label("\n".join(wrap(sign.get_label(), LEGEND_WIDTH)))
    widest = max(len(line) for sign in signs for line in sign.get_label().split("\n"))
    columns = min(max_columns, LEGEND_WIDTH // (widest + LEGEND_HANDLE_WIDTH), len(signs))
    figure.legend(handles=signs, loc="outside lower center", ncols=max(1, columns), fontsize=9)


def draw_crossover_plots(title: str, plots: Sequence[CrossoverPlot], published: tuple[int, str]) -> Figure:
    """Time over parameters on both devices, with each crossing and the published one.

    The upper axis shows the layers. Shaded areas are the intervals of the crossings.
    """
    figure, axes = _new_figure(8.0, 5.2)
    for at, race in enumerate(plots):
        for place, curve in enumerate((race.loser, race.winner)):
            _draw_curve(axes, PlotCurve(f"{curve.setting}: {curve.device}", "", curve.x, curve.y, curve.spread), 2 * at + place, at, True)
        if race.crossing is not None:
            low, high = race.low or race.winner.x[0], race.high or race.winner.x[-1]
            if race.low is not None or race.high is not None:
                axes.axvspan(low, high, color=COLORS[(2 * at + 1) % 7], alpha=0.15, linewidth=0)
            label = f"{race.winner.setting} ({race.winner.device}) is faster from {format_3sig(race.crossing)} parameters"
            axes.axvline(
                race.crossing, color=COLORS[(2 * at + 1) % 7], linestyle=DASHES[at % 4], linewidth=1.2, label=escape_mathtext(label)
            )
    axes.set_xscale("log")
    if any(race.is_cpu_vs_gpu for race in plots):
        _mark_published(axes, *published)
    axes.set_yscale("log")
    set_log_ticks(axes.xaxis, [parameters for race in plots for parameters in (*race.loser.x, *race.winner.x)])
    set_log_ticks(axes.yaxis, [height for race in plots for height in (*race.loser.y, *race.winner.y)])
    axes.set_xlabel("parameters")
    axes.set_ylabel("training time (s)")
    _add_layers_axis(axes, plots)
    axes.set_title(f"{title}, mean and standard deviation over rounds")
    add_legend(figure, axes.get_legend_handles_labels()[0], max_columns=2)
    return figure


def _mark_published(axes: Axes, parameters: int, label: str) -> None:
    """Mark the published crossing with a line or, outside the axis range, an arrow at the edge.

    The arrow keeps the axis on the measured models.
    """
    low, high = axes.get_xlim()
    sign: dict[str, Any] = {"color": "0.4", "label": label}
    if low <= parameters <= high:
        axes.axvline(parameters, linestyle=(0, (1, 3)), linewidth=1.5, **sign)
        return
    edge, arrow = (0.0, "<") if parameters < low else (1.0, ">")
    axes.plot(edge, 0.5, transform=axes.transAxes, marker=arrow, markersize=11, linestyle="none", clip_on=False, **sign)
    axes.set_xlim(low, high)


def _new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    with matplotlib.rc_context(RC_PARAMS):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots()


def batch_label(item: str) -> str:
    return f"batch size ({escape_mathtext(item)}s per device per step)"


def escape_mathtext(text: str) -> str:
    """``text`` on one line, with dollar signs escaped so that they do not start mathtext."""
    return printable(text).replace("$", r"\$")


def _draw_curve(axes: Axes, curve: PlotCurve, color: int, dash: int, with_spread: bool) -> None:
    """Draw one curve. Marker fill depends on the device, so that overlapping curves differ."""
    axes.errorbar(
        curve.x,
        curve.y,
        yerr=curve.spread if with_spread and any(curve.spread) else None,
        linestyle=DASHES[dash % 4],
        markersize=6,
        linewidth=1.4,
        capsize=3,
        label=escape_mathtext(curve.name),
        **_marker_style(color, dash),
    )


def _mark_out_of_memory(axes: Axes, curves: Sequence[PlotCurve], settings: Sequence[str], devices: Sequence[str]) -> None:
    """Mark each batch size that ran out of memory with a cross at the axis.

    The curve's own marker is drawn inside. Crosses of several curves are stacked.
    """
    stacked: Counter[float] = Counter()
    for curve in curves:
        curve_style = _marker_style(settings.index(curve.setting), devices.index(curve.device))
        for size in curve.out_of_memory_x:
            height = OOM_MARKER_HEIGHT + OOM_MARKER_SPACING * stacked[size]
            for sign in (OOM_MARKER, {**curve_style, "markersize": 5, "zorder": 7}):
                axes.plot(size, height, transform=axes.get_xaxis_transform(), **sign)
            stacked[size] += 1


def _marker_style(color: int, dash: int) -> dict[str, Any]:
    return {"color": COLORS[color % 7], "marker": MARKERS[color % 7], "fillstyle": FILLS[dash % 4], "markerfacecoloralt": "white"}


def _add_layers_axis(axes: Axes, found: Sequence[CrossoverPlot]) -> None:
    layers = dict(sorted({size: depth for race in found for size, depth in zip(race.loser.x, race.layers, strict=True)}.items()))
    above = axes.secondary_xaxis("top")
    above.xaxis.set_major_locator(FixedLocator(list(layers)))
    above.xaxis.set_major_formatter(FixedFormatter([str(depth) for depth in layers.values()]))
    above.xaxis.set_minor_locator(NullLocator())
    above.set_xlabel("layers")


def set_log_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Plain numbers on a logarithmic axis, with denser ticks if it spans little."""
    decades = log10(max(values) / min(values))
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
