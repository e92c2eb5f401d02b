"""The roofline of a step: how far each layer is from the limits of the device, and which limit binds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ddpbench.record.roofline import DeviceLimits, LayerWork, Roofline, Work

Bound = Literal["compute", "memory", "launches"]

NUM_COSTLIEST = 3
"""How many layers the page names that cost most above their limit."""


@dataclass(frozen=True)
class RooflineRow:
    """Counted work of one layer or of several, its time, and the least time that each limit allows for what it binds."""

    name: str
    num_layers: int
    flops: float
    num_bytes: float
    kernels: float
    ms: float
    limit_ms_by_bound: Mapping[Bound, float]

    @property
    def limit_ms(self) -> float:
        """The least time: forward and backward passes of every layer, each at the limit that binds it."""
        return sum(self.limit_ms_by_bound.values())

    @property
    def excess_ms(self) -> float:
        """Time above the limit."""
        return self.ms - self.limit_ms

    @property
    def bound(self) -> Bound:
        """The limit that accounts for most of ``limit_ms``."""
        return max(self.limit_ms_by_bound, key=lambda bound: self.limit_ms_by_bound[bound])

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0


def least_ms(work: Work, limits: DeviceLimits) -> dict[Bound, float]:
    """Milliseconds that each limit alone allows for ``work``."""
    return {
        "compute": work.flops / limits.matmul_tflops / 1e9,
        "memory": work.num_bytes / limits.copy_gb_per_s / 1e6,
        "launches": work.kernels * limits.launch_us / 1e3,
    }


def layer_row(layer: LayerWork, limits: DeviceLimits) -> RooflineRow:
    """The row of one layer."""
    bounds: defaultdict[Bound, float] = defaultdict(float)
    for work in (layer.forward, layer.backward):
        allowed = least_ms(work, limits)
        bound = max(allowed, key=lambda each: allowed[each])
        bounds[bound] += allowed[bound]
    passes = layer.forward, layer.backward
    return RooflineRow(
        name=layer.name or layer.kind,
        num_layers=1,
        flops=sum(work.flops for work in passes),
        num_bytes=sum(work.num_bytes for work in passes),
        kernels=sum(work.kernels for work in passes),
        ms=sum(work.ms for work in passes),
        limit_ms_by_bound=bounds,
    )


def sum_rows(name: str, rows: Iterable[RooflineRow]) -> RooflineRow:
    """One row for several."""
    rows = list(rows)
    bounds: defaultdict[Bound, float] = defaultdict(float)
    for row in rows:
        for bound, ms in row.limit_ms_by_bound.items():
            bounds[bound] += ms
    return RooflineRow(
        name=name,
        num_layers=sum(row.num_layers for row in rows),
        flops=sum(row.flops for row in rows),
        num_bytes=sum(row.num_bytes for row in rows),
        kernels=sum(row.kernels for row in rows),
        ms=sum(row.ms for row in rows),
        limit_ms_by_bound=bounds,
    )


def layer_rows(roofline: Roofline) -> list[RooflineRow]:
    """One row per layer, in the order of the forward pass."""
    return [layer_row(layer, roofline.limits) for layer in roofline.layers]


def kind_rows(roofline: Roofline) -> list[RooflineRow]:
    """One row per class of module, and one per part of the step outside of the model; the slowest first."""
    by_kind: defaultdict[str, list[RooflineRow]] = defaultdict(list)
    for layer, row in zip(roofline.layers, layer_rows(roofline), strict=True):
        by_kind[layer.kind or layer.name].append(row)
    return sorted((sum_rows(kind, rows) for kind, rows in by_kind.items()), key=lambda row: -row.ms)


def costliest_layers(roofline: Roofline) -> list[RooflineRow]:
    """The layers that cost most above their limit, the costliest first; fewer than NUM_COSTLIEST if the others reach it."""
    above = [row for row in layer_rows(roofline) if row.excess_ms > 0]
    return sorted(above, key=lambda row: -row.excess_ms)[:NUM_COSTLIEST]
