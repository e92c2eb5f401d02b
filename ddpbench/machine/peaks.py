"""Measured limits of this device: large matrix products, copies in its memory, and launches of small operators."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from ddpbench.machine.backends import tf32_for_a_while
from ddpbench.machine.device import Device
from ddpbench.record.roofline import DeviceLimits

MATMUL_SIDE = 8192
CPU_MATMUL_SIDE = 1024
MATMULS_PER_RUN = 8
MIN_DURATION_S = 0.8
"""Clocks and power settle within some tenths of a second: a shorter measurement is up to 5% off."""

MIN_RUNS = 3

COPY_BYTES = 2**30
CPU_COPY_BYTES = 2**28
"""Size of a copied tensor: far larger than the caches."""

LAUNCHES_PER_RUN = 1000


def measure_limits(device: Device, dtype: str) -> DeviceLimits:
    """The limits of ``device`` for a step that computes in ``dtype``. Takes three seconds, on a CPU in float16 longer."""
    return DeviceLimits(
        matmul_tflops=measure_matmul_tflops(device, dtype),
        copy_gb_per_s=measure_copy_bytes_per_s(device) / 1e9,
        launch_us=measure_launch_s(device) * 1e6,
    )


def measure_matmul_tflops(device: Device, dtype: str) -> float:
    """Median TFLOP/s of large square products; dtype ``tf32`` is float32 with TF32.

    The data are random, because a product of zeros draws less power and runs faster than any training.
    """
    torch_dtype = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    side = MATMUL_SIDE if device.is_cuda else CPU_MATMUL_SIDE
    generator = torch.Generator(device.torch_device).manual_seed(0)  # a training in this process draws the same numbers as without
    left, right = (torch.randn(side, side, generator=generator, device=device.torch_device).to(torch_dtype) for _ in range(2))
    out = torch.empty_like(left)
    calls = MATMULS_PER_RUN if device.is_cuda else 1
    with tf32_for_a_while(dtype == "tf32"):
        return 2 * side**3 / _seconds_per_call(device, lambda: torch.mm(left, right, out=out), calls) / 1e12


def measure_copy_bytes_per_s(device: Device) -> float:
    """Median bytes per second, read and written, of copies between two large tensors on the device."""
    source = torch.ones(COPY_BYTES if device.is_cuda else CPU_COPY_BYTES, dtype=torch.uint8, device=device.torch_device)
    target = source.clone()  # both written: untouched memory of a CPU has no pages yet
    return 2 * source.numel() / _seconds_per_call(device, lambda: target.copy_(source), calls=1)


def measure_launch_s(device: Device) -> float:
    """Median seconds from one small operator to the next, if the host issues nothing else."""
    one = torch.zeros(1, device=device.torch_device)
    return _seconds_per_call(device, lambda: one.add_(1), LAUNCHES_PER_RUN)


def _seconds_per_call(device: Device, call: Callable[[], object], calls: int) -> float:
    """Median seconds of a call over runs of ``calls``; one call and the first half of the runs warm up."""
    _run_s(device, call, 1)
    runs_s: list[float] = []
    while sum(runs_s) < MIN_DURATION_S or len(runs_s) < MIN_RUNS:
        runs_s.append(_run_s(device, call, calls))
    return median(runs_s[len(runs_s) // 2 :]) / calls


def _run_s(device: Device, call: Callable[[], object], calls: int) -> float:
    """Seconds of ``calls`` calls in a row on the device."""
    if not device.is_cuda:
        begin_s = perf_counter()
        for _ in range(calls):
            call()
        return perf_counter() - begin_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
