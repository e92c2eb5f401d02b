"""The roofline of a step: how far each layer is from the limits of the device, and which limit binds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddpbench.record.roofline import DeviceLimits, LayerWork, Roofline, Work

Bound = Literal["compute", "memory", "launches"]
"""What the time of a layer depends on: arithmetic, memory traffic, or, if its kernels are shorter than their launches, the host."""

NUM_COSTLIEST = 3
"""How many layers the page names that cost most above their limit."""


@dataclass(frozen=True)
class RooflineRow:
    """Counted work of one layer or of several, its time, and the least time that the device needs for it, both by what binds them."""

    name: str
    kind: str  # class of the module; empty for a part of the step, and for several kinds
    num_layers: int
    flops: float
    num_bytes: float
    launch_ms: float  # that the host needs to launch its kernels
    ms_by_bound: Mapping[Bound, float]
    limit_ms_by_bound: Mapping[Bound, float]

    @property
    def label(self) -> str:
        """The name, with the number of layers if there are several."""
        return f"{self.num_layers} {self.name}" if self.num_layers > 1 else self.name

    @property
    def ms(self) -> float:
        return sum(self.ms_by_bound.values())

    @property
    def limit_ms(self) -> float:
        """The least time: forward and backward passes of every layer, each at the peak of the arithmetic or of the memory."""
        return sum(self.limit_ms_by_bound.values())

    @property
    def excess_ms(self) -> float:
        """Time above the limit."""
        return self.ms - self.limit_ms

    @property
    def bound(self) -> Bound:
        """What binds most of ``ms``."""
        return max(self.ms_by_bound, key=lambda bound: self.ms_by_bound[bound])

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0


def layer_row(layer: LayerWork, limits: DeviceLimits) -> RooflineRow:
    """The row of one layer: its forward and its backward pass, each with a limit of its own."""
    passes = sum_rows(layer.name or layer.kind, [_pass_row(work, limits) for work in (layer.forward, layer.backward)])
    return replace(passes, kind=layer.kind, num_layers=1)


def _pass_row(work: Work, limits: DeviceLimits) -> RooflineRow:
    """The row of one pass of one layer, without a name."""
    compute_ms, memory_ms = work.flops / limits.matmul_tflops / 1e9, work.num_bytes / limits.copy_gb_per_s / 1e6
    launch_ms = work.kernels * limits.launch_us / 1e3
    bound: Bound = "launches" if launch_ms > work.ms else "compute" if compute_ms > memory_ms else "memory"
    limit_ms = max(compute_ms, memory_ms)
    return RooflineRow("", "", 1, work.flops, work.num_bytes, launch_ms, {bound: work.ms}, {bound: limit_ms})


def sum_rows(name: str, rows: Sequence[RooflineRow]) -> RooflineRow:
    """One row for several."""
    return RooflineRow(
        name=name,
        kind="",
        num_layers=sum(row.num_layers for row in rows),
        flops=sum(row.flops for row in rows),
        num_bytes=sum(row.num_bytes for row in rows),
        launch_ms=sum(row.launch_ms for row in rows),
        ms_by_bound=_sum_by_bound(row.ms_by_bound for row in rows),
        limit_ms_by_bound=_sum_by_bound(row.limit_ms_by_bound for row in rows),
    )


def _sum_by_bound(parts: Iterable[Mapping[Bound, float]]) -> dict[Bound, float]:
    total: defaultdict[Bound, float] = defaultdict(float)
    for part in parts:
        for bound, ms in part.items():
            total[bound] += ms
    return total


def layer_rows(roofline: Roofline) -> list[RooflineRow]:
    """One row per layer, in the order of the forward pass."""
    return [layer_row(layer, roofline.limits) for layer in roofline.layers]


def kind_rows(roofline: Roofline) -> list[RooflineRow]:
    """One row per class of module, and one per part of the step outside of the model; the slowest first."""
    by_kind: defaultdict[str, list[RooflineRow]] = defaultdict(list)
    for row in layer_rows(roofline):
        by_kind[row.kind or row.name].append(row)
    return sorted((sum_rows(kind, rows) for kind, rows in by_kind.items()), key=lambda row: -row.ms)


def costliest_layers(roofline: Roofline) -> list[RooflineRow]:
    """The layers that cost most above their limit, the costliest first; fewer than NUM_COSTLIEST if the others reach it."""
    above = [row for row in layer_rows(roofline) if row.excess_ms > 0]
    return sorted(above, key=lambda row: -row.excess_ms)[:NUM_COSTLIEST]
