"""Measured peak TFLOP/s of large matrix products on this device: the reference for model FLOPs utilization."""

from __future__ import annotations

from statistics import median

import torch

from ddpbench.machine.backends import set_tf32
from ddpbench.machine.device import Device

MATMUL_SIDE = 8192
MATMULS_PER_RUN = 8
MIN_DURATION_S = 0.8
"""Clocks and power settle within some tenths of a second: a shorter measurement is up to 5% off."""


def measure_matmul_tflops(device: Device, dtype: str) -> float:
    """Median TFLOP/s of ``MATMUL_SIDE`` x ``MATMUL_SIDE`` products; dtype ``tf32`` is float32 with TF32.

    The data are random, because a product of zeros draws less power and runs faster than any training.
    """
    set_tf32(dtype == "tf32")
    torch_dtype = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    left, right = (torch.randn(MATMUL_SIDE, MATMUL_SIDE, device=device.torch_device, dtype=torch_dtype) for _ in range(2))
    out = torch.empty_like(left)
    runs_s: list[float] = []
    while sum(runs_s) < MIN_DURATION_S:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(MATMULS_PER_RUN):
            torch.mm(left, right, out=out)
        end.record()
        end.synchronize()
        runs_s.append(begin.elapsed_time(end) / 1e3)
    return 2 * MATMUL_SIDE**3 * MATMULS_PER_RUN / median(runs_s[len(runs_s) // 2 :]) / 1e12  # the first half warms up
