"""Limits of layers: which one binds, sums over layers, and the costliest ones."""

from __future__ import annotations

import pytest

from ddpbench.analysis.roofline import costliest_layers, kind_rows, layer_row, layer_rows, sum_rows
from ddpbench.record.roofline import DeviceLimits, LayerWork, Roofline, Work

LIMITS = DeviceLimits(matmul_tflops=100.0, copy_gb_per_s=1000.0, launch_us=5.0)
NOTHING = Work(flops=0, num_bytes=0, kernels=0, ms=0)
COMPUTE = Work(flops=2e11, num_bytes=1e9, kernels=2, ms=2.5)  # 2 ms of compute, 1 of memory
MEMORY = Work(flops=0, num_bytes=3e9, kernels=1, ms=3.0)
LAUNCHES = Work(flops=1e6, num_bytes=1e5, kernels=10, ms=0.02)


def layer(forward: Work, backward: Work = NOTHING, name: str = "layer", kind: str = "Conv2d") -> LayerWork:
    return LayerWork(name=name, kind=kind, forward=forward, backward=backward)


@pytest.mark.parametrize(("work", "bound", "limit_ms"), [(COMPUTE, "compute", 2.0), (MEMORY, "memory", 3.0), (LAUNCHES, "launches", 1e-4)])
def test_limit_is_the_larger_time_of_arithmetic_and_memory(work: Work, bound: str, limit_ms: float) -> None:
    row = layer_row(layer(work), LIMITS)
    assert row.bound == bound
    assert row.limit_ms == pytest.approx(limit_ms)
    assert row.excess_ms == pytest.approx(work.ms - limit_ms)


def test_kernels_that_are_shorter_than_their_launches_are_bound_by_these() -> None:
    row = layer_row(layer(LAUNCHES), LIMITS)
    assert row.launch_ms == pytest.approx(10 * 5e-3)
    assert row.launch_ms > row.ms


def test_forward_and_backward_have_limits_of_their_own() -> None:
    row = layer_row(layer(COMPUTE, MEMORY), LIMITS)
    assert row.limit_ms == pytest.approx(2.0 + 3.0)
    assert row.bound == "memory"
    assert row.intensity == pytest.approx(2e11 / 4e9)


def test_sum_of_rows_adds_work_and_limits() -> None:
    rows = [layer_row(layer(work), LIMITS) for work in (COMPUTE, MEMORY, LAUNCHES)]
    step = sum_rows("step", rows)
    assert step.num_layers == 3
    assert step.limit_ms == pytest.approx(5.0001)
    assert step.ms == pytest.approx(5.52)
    assert step.bound == "memory"
    assert step.launch_ms == pytest.approx(13 * 5e-3)


def test_kinds_are_grouped_and_parts_of_the_step_are_not() -> None:
    layers = [
        layer(LAUNCHES, name="a"),
        layer(MEMORY, name="norm", kind="BatchNorm2d"),
        layer(COMPUTE, name="b"),
        layer(LAUNCHES, name="(optimizer)", kind=""),
        layer(LAUNCHES, name="(loss)", kind=""),
    ]
    roofline = Roofline(layers=layers, limits=LIMITS)
    assert [(row.name, row.num_layers) for row in kind_rows(roofline)] == [
        ("BatchNorm2d", 1),
        ("Conv2d", 2),
        ("(optimizer)", 1),
        ("(loss)", 1),
    ]
    assert [row.name for row in layer_rows(roofline)] == ["a", "norm", "b", "(optimizer)", "(loss)"]


def test_costliest_layers_are_those_above_their_limit() -> None:
    slow = [layer(Work(flops=0, num_bytes=1e9, kernels=1, ms=1.0 + excess), name=f"{excess}") for excess in (0.0, 0.3, 0.1, 0.4, 0.2)]
    roofline = Roofline(layers=slow, limits=LIMITS)
    assert [row.name for row in costliest_layers(roofline)] == ["0.4", "0.3", "0.2"]
    assert costliest_layers(Roofline(layers=slow[:1], limits=LIMITS)) == []


def test_whole_model_is_named_by_its_class() -> None:
    assert layer_row(layer(MEMORY, name="", kind="ResNet"), LIMITS).name == "ResNet"
