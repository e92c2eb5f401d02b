"""The roofline table: work and time of the layers, and their distance to the limits of the device."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.analysis.roofline import RooflineRow, costliest_layers, kind_rows, layer_rows, sum_rows
from ddpbench.record.record import Record
from ddpbench.record.roofline import DeviceLimits
from ddpbench.report.format import MISSING, format_decimals, format_rounded, format_significant, step_decimals
from ddpbench.report.layout import LABEL, Page, align_columns, styled, wrap_items, wrap_text
from ddpbench.report.messages.roofline import ABOVE_LIMIT, MAX_REACHED
from ddpbench.report.pages.header import labelled_lines

HEADING = ["roofline", "GFLOP", "GB", "FLOP/B", "ms", "limit ms", "reached", "bound by"]
ALIGN = "<>>>>>><"

MAX_KINDS = 5
"""Classes of modules with a row of their own, unless the page is verbose."""

MAX_NAME = 22
"""Longest name of a layer in the table; of a longer path the end is shown."""


def roofline_lines(record: Record, page: Page) -> Iterator[Text]:
    """A row for each of the classes of modules that take most of the time, or on a verbose page per layer; then the step, the limits of
    the device and the costliest layers.

    Empty without ``--roofline``.
    """
    roofline = record.roofline
    if roofline is None:
        return
    step = sum_rows("step", layer_rows(roofline))
    layers = [(_shorten(_name(row)), row) for row in layer_rows(roofline)]
    kinds = kind_rows(roofline)
    largest = [(row.label, row) for row in kinds[:MAX_KINDS]]
    others = [("(others)", sum_rows("(others)", kinds[MAX_KINDS:]))] if len(kinds) > MAX_KINDS else []
    shown = [*(layers if page.verbose else [*largest, *others]), (step.name, step)]
    head, *lines = align_columns([HEADING, *(_cells(name, row, step) for name, row in shown)], ALIGN, page)
    yield from styled([head], LABEL)
    yield from styled(lines)
    yield from styled(wrap_items("  ", _legend(roofline.limits, step, record.environment.device_type == "cuda"), page))
    if any(row.limit_ms > MAX_REACHED * row.ms > 0 for _, row in shown):
        yield from styled(wrap_text("  ", ABOVE_LIMIT, page))
    decimals = step_decimals(step.ms)
    costliest = [row for row in costliest_layers(roofline) if round(row.excess_ms, decimals)]
    if costliest:
        named = [f"{_name(row)} {format_decimals(row.excess_ms, decimals)} ms" for row in costliest]
        yield from labelled_lines("most above their limit", named, page)


def _name(row: RooflineRow) -> str:
    """``layer1.0.conv2``; with its class, ``features.0 (Conv2d)``, if the module has only a number."""
    return f"{row.name} ({row.kind})" if row.name.rpartition(".")[2].isdecimal() else row.name


def _shorten(name: str) -> str:
    """The end of a name that is too long: layers differ there."""
    return name if len(name) <= MAX_NAME else f"...{name[3 - MAX_NAME :]}"


def _cells(name: str, row: RooflineRow, step: RooflineRow) -> list[str]:
    """The cells of one row, with the decimals that suit those of ``step``."""
    gflop, gigabytes = row.flops / 1e9, row.num_bytes / 1e9
    return [
        f"  {name}",
        format_decimals(gflop, step_decimals(step.flops / 1e9)) if gflop else MISSING,
        format_decimals(gigabytes, step_decimals(step.num_bytes / 1e9)) if gigabytes else MISSING,
        format_rounded(row.intensity, 2) if gflop else MISSING,
        format_decimals(row.ms, step_decimals(step.ms)),
        format_decimals(row.limit_ms, step_decimals(step.ms)),
        f"{row.limit_ms / row.ms:.0%}" if row.ms else MISSING,
        row.bound,
    ]


def _legend(limits: DeviceLimits, step: RooflineRow, is_cuda: bool) -> list[str]:
    device, launch = ("GPU", "a kernel") if is_cuda else ("CPU", "an operator")
    launches_ms = format_decimals(step.launch_ms, step_decimals(step.ms))
    return [
        f"limits of this {device}, measured: {format_significant(limits.matmul_tflops)} TFLOP/s",
        f"{format_rounded(limits.copy_gb_per_s)} GB/s",
        f"{format_significant(limits.launch_us, 2)} us to launch {launch}, {launches_ms} ms per step",
        "times of profiled steps",
    ]
