"""What this very device reaches on a large matrix product: the measure for model FLOPs utilisation."""

from __future__ import annotations

import torch

from ddpbench.machine.device import Device
from ddpbench.machine.switches import set_tf32

SIDE = 8192
PRODUCTS = 8


def matmul_tflops(device: Device, dtype: str) -> float:
    """TFLOP/s of ``SIDE`` x ``SIDE`` products on random data, median of three runs; ``tf32`` is float32 through TF32.

    Random data, because a product of zeros draws less power and runs faster than any training does.
    """
    set_tf32(dtype == "tf32")
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    left, right = (torch.randn(SIDE, SIDE, device=device.torch, dtype=kind) for _ in range(2))
    out = torch.empty_like(left)
    runs: list[float] = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(PRODUCTS):
            torch.mm(left, right, out=out)
        end.record()
        end.synchronize()
        runs.append(begin.elapsed_time(end) / 1e3)
    seconds = sorted(runs[1:])[1] / PRODUCTS  # the first run warms up
    return 2 * SIDE**3 / seconds / 1e12
