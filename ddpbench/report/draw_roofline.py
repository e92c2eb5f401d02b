"""The picture of a roofline: layers below the limits of the device, and the time of the step above its limit."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddpbench.analysis.roofline import Bound, RooflineRow, kind_rows, layer_rows, sum_rows
from ddpbench.record.record import Record
from ddpbench.record.roofline import DeviceLimits, Roofline
from ddpbench.report.draw import COLORS, MARKERS, RC_PARAMS, escape_mathtext, set_log_ticks
from ddpbench.report.messages.roofline import ABOVE_ROOF, MAX_REACHED
from ddpbench.report.plot_data import device_name

NOTE_WIDTH = 100
"""Characters in a line of the note below the picture."""

MAX_BARS = 10
"""Of more kinds of layers, the fastest share one bar."""

BOUND_STYLES: dict[Bound, tuple[str, str]] = {
    "compute": (COLORS[0], ""),
    "memory": (COLORS[2], "///"),
    "launches": (COLORS[3], "..."),
}
"""Colour and hatch of the time that each limit allows."""


def draw_roofline(record: Record, roofline: Roofline) -> Figure:
    """Above: TFLOP/s of each layer with FLOPs over its FLOPs per byte. Below: the time of each kind of layer, and its limit."""
    with matplotlib.rc_context(RC_PARAMS):  # type: ignore[arg-type]
        figure = Figure(figsize=(8.0, 8.4), layout="constrained")
        above, below = figure.subplots(2, 1)
    shown = [*_draw_layers(above, roofline), *_draw_times(below, kind_rows(roofline))]
    if any(row.limit_ms > MAX_REACHED * row.ms > 0 for row in shown):
        figure.supxlabel("\n".join(wrap(ABOVE_ROOF, NOTE_WIDTH)), fontsize=9, style="italic")
    config = record.config
    title = f"{config.workload}, {config.precision}, batch {config.batch_size}, {device_name(record)}: one step"
    figure.suptitle(escape_mathtext(title), fontsize=12)
    return figure


def _draw_layers(axes: Axes, roofline: Roofline) -> list[RooflineRow]:
    """Draw the points; return their rows."""
    rows = layer_rows(roofline)
    computing = [row for row in rows if row.flops and row.ms]
    for at, kind in enumerate(dict.fromkeys(row.kind or row.name for row in computing)):
        alike = [row for row in computing if (row.kind or row.name) == kind]
        _draw_points(axes, alike, label=kind, marker=MARKERS[at % 7], color=COLORS[at % 7])
    step = sum_rows("step", rows)
    _draw_points(axes, [step], label="step", marker="*", color="black", size=14)
    _draw_limits(axes, roofline.limits, [row.intensity for row in (*computing, step)])
    axes.set_xscale("log")
    axes.set_yscale("log")
    set_log_ticks(axes.xaxis, axes.get_xlim())
    set_log_ticks(axes.yaxis, axes.get_ylim())
    axes.set_xlabel("FLOPs per byte of memory traffic")
    axes.set_ylabel("TFLOP/s")
    axes.legend(loc="lower right", fontsize=9)
    return [*computing, step]


def _draw_points(axes: Axes, rows: Sequence[RooflineRow], label: str, marker: str, color: str, size: float = 6) -> None:
    tflops = [row.flops / row.ms / 1e9 for row in rows]
    style: dict[str, Any] = {"marker": marker, "color": color, "markersize": size, "alpha": 0.8}
    axes.plot([row.intensity for row in rows], tflops, linestyle="none", label=escape_mathtext(label), **style)


def _draw_limits(axes: Axes, limits: DeviceLimits, intensities: Sequence[float]) -> None:
    """The slope of the memory and the ceiling of the matrix products, over ``intensities`` and on both sides of the knee."""
    knee = limits.matmul_tflops * 1e3 / limits.copy_gb_per_s
    x = [min(knee, *intensities) / 2, knee, max(knee, *intensities) * 2]
    y = [min(limits.matmul_tflops, each * limits.copy_gb_per_s / 1e3) for each in x]
    label = f"{limits.copy_gb_per_s:,.0f} GB/s, {limits.matmul_tflops:,.3g} TFLOP/s"
    axes.plot(x, y, color="black", linewidth=1.4, label=label)


def _draw_times(axes: Axes, rows: Sequence[RooflineRow]) -> list[RooflineRow]:
    """Draw the bars; return their rows."""
    shown = [*rows[:MAX_BARS], *([sum_rows("others", rows[MAX_BARS:])] if len(rows) > MAX_BARS else [])]
    places = range(len(shown))
    left = [0.0] * len(shown)
    for bound, (color, hatch) in BOUND_STYLES.items():
        widths = [row.limit_ms_by_bound.get(bound, 0.0) for row in shown]
        if any(widths):
            axes.barh(places, widths, left=left, color=color, hatch=hatch, edgecolor="black", linewidth=0.6, label=f"limit: {bound}")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.barh(places, [row.ms for row in shown], height=0.35, color="none", edgecolor=COLORS[1], linewidth=1.8, label="measured")
    axes.set_yticks(places, [escape_mathtext(row.label) for row in shown])
    axes.invert_yaxis()
    axes.set_xlabel("ms per step")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right", fontsize=9)
    return shown
