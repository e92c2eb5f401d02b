"""The pictures of speed-ups: bars over batch size, one panel per comparison."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddpbench.analysis.stats import PairedRatio
from ddpbench.report.draw import (
    COLORS,
    HATCHES,
    OOM_LABEL,
    OOM_MARKER,
    OOM_MARKER_HEIGHT,
    RC_PARAMS,
    add_legend,
    batch_label,
    escape_mathtext,
)
from ddpbench.report.speedup_data import SpeedupPlot

WHITE_BOX: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
"""Background of a label, so that the line at 1 does not cross its text."""

MAX_BAR_WIDTH = 0.3
"""Of the distance between two batch sizes, so that a single bar does not fill the panel."""

SUPTITLE_WIDTH, TITLE_WIDTH = 85, 95
"""Characters in a line of the figure's title, and of a panel's."""

REFERENCE_LINE: dict[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": "--"}


def draw_speedup_plots(title: str, panels: Sequence[SpeedupPlot]) -> Figure:
    """Speed-ups as bars, one panel per device, all on one scale.

    Error bars are the intervals or, if there are too few rounds, the ranges.
    """
    settings = list(dict.fromkeys(setting for panel in panels for setting in panel.speedups))
    references = list(dict.fromkeys(panel.reference for panel in panels))
    with matplotlib.rc_context(RC_PARAMS):  # type: ignore[arg-type]
        figure = Figure(figsize=(8.0, 1.6 + 2.3 * len(panels)), layout="constrained")
        rows = figure.subplots(len(panels), 1, sharey=True, squeeze=False)
    highest = max(found.high for panel in panels for each in panel.speedups.values() for found in each if found)
    rows[0, 0].set_ylim(0, 1.15 * max(1.0, highest))
    for axes, panel in zip(rows[:, 0], panels, strict=True):
        _draw_panel(axes, panel, settings)
        name = f"{panel.device}{panel.date}{f', relative to {panel.reference}' if len(references) > 1 else ''}"
        axes.set_title("\n".join(wrap(escape_mathtext(name), TITLE_WIDTH)), fontsize=10)
    rows[-1, 0].set_xlabel(batch_label(panels[0].item))
    figure.suptitle(_wrapped_title(title, references, _interval_kinds(panels)), fontsize=12)
    add_legend(figure, _signs(panels, settings, references), max_columns=3)
    return figure


def _wrapped_title(title: str, references: Sequence[str], interval_kinds: str) -> str:
    """``vgg16-cifar10, speed-up over fp32 with 95% interval``, on lines that fit."""
    over = f" over {references[0]}" if len(references) == 1 else ""
    parts = [escape_mathtext(f"{title}, speed-up{over}"), interval_kinds]
    if len("".join(parts)) <= SUPTITLE_WIDTH:
        return "".join(parts)
    return "\n".join(line for part in parts for line in wrap(part, SUPTITLE_WIDTH))


def _signs(panels: Sequence[SpeedupPlot], settings: Sequence[str], references: Sequence[str]) -> list[Artist]:
    """The legend: the settings, the line of the reference, and the cross of what ran out of memory."""
    signs: list[Artist] = [
        Patch(facecolor=COLORS[at % 7], edgecolor="black", hatch=HATCHES[at % 7], label=escape_mathtext(name))
        for at, name in enumerate(settings)
    ]
    reference = references[0] if len(references) == 1 else "reference of the panel"
    signs.append(Line2D([], [], **REFERENCE_LINE, label=escape_mathtext(f"1: {reference}")))
    if any(sizes for panel in panels for sizes in panel.out_of_memory_batches.values()):
        on_line = any(panel.out_of_memory_batches[panel.reference] for panel in panels)
        label = f"{OOM_LABEL}, on the line {reference}" if on_line else OOM_LABEL
        signs.append(Line2D([], [], **OOM_MARKER, label=escape_mathtext(label)))
    return signs


def _draw_panel(axes: Axes, panel: SpeedupPlot, settings: Sequence[str]) -> None:
    shown = [_visible_settings(panel, group) for group in range(len(panel.batches))]
    width = min(MAX_BAR_WIDTH, 0.8 / max(map(len, shown)))
    for group, visible in enumerate(shown):
        for place, setting in enumerate(visible, 1):
            at, found = settings.index(setting), panel.speedups[setting][group]
            middle = group + (place - (len(visible) + 1) / 2) * width
            if found is None:
                if panel.batches[group] in panel.out_of_memory_batches[setting]:
                    axes.plot(middle, 2 * OOM_MARKER_HEIGHT, transform=axes.get_xaxis_transform(), **OOM_MARKER)
                continue
            axes.bar(middle, found.center, 0.92 * width, color=COLORS[at % 7], edgecolor="black", hatch=HATCHES[at % 7], alpha=0.85)
            if found.low < found.high:
                error_bar = [[found.center - found.low], [found.high - found.center]]
                axes.errorbar(middle, found.center, error_bar, color="black", capsize=2)
            _label_bar(axes, middle, found)
    for size, why in panel.empty_reasons.items():
        position = (panel.batches.index(size), 0.5)
        axes.annotate(
            escape_mathtext(why),
            position,
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            va="center",
            fontsize=8,
            style="italic",
            bbox=WHITE_BOX,
        )
    for size in panel.out_of_memory_batches[panel.reference]:
        axes.plot(panel.batches.index(size), 1.0, **OOM_MARKER)
    axes.axhline(1.0, **REFERENCE_LINE)
    axes.set_xticks(range(len(panel.batches)), [str(size) for size in panel.batches])
    axes.set_xlim(-0.6, len(panel.batches) - 0.4)
    axes.set_ylabel("speed-up")
    axes.grid(visible=False, axis="x")


def _visible_settings(panel: SpeedupPlot, group: int) -> list[str]:
    """The settings with a bar in this group; all of them if one ran out of memory.

    A cross is identified by its place only, so the places of all settings are kept.
    """
    if any(panel.batches[group] in panel.out_of_memory_batches[setting] for setting in panel.speedups):
        return list(panel.speedups)
    return [setting for setting, each in panel.speedups.items() if each[group] is not None]


def _interval_kinds(panels: Sequence[SpeedupPlot]) -> str:
    """What the error bars are, for the title."""
    drawn = [found for panel in panels for each in panel.speedups.values() for found in each if found and found.low < found.high]
    kinds = dict.fromkeys("95% interval" if found.has_interval else "range of rounds" for found in drawn)
    return f" with {' or '.join(kinds)}" if kinds else ""


def _label_bar(axes: Axes, place: float, found: PairedRatio) -> None:
    text = f"{found.center:.2f}"
    axes.annotate(text, (place, found.high), (0, 4), textcoords="offset points", ha="center", fontsize=7, bbox=WHITE_BOX, zorder=5)
