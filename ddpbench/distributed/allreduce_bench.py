"""How fast the ranks of a world reduce together with nobody training: the measure for what a training's all-reduce reaches."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
from torch import distributed as dist

from ddpbench.distributed.world import World
from ddpbench.record.scaling import bus_bandwidth

MB = 10**6
SIZES_BYTES = {"cuda": (MB, 25 * MB, 100 * MB, 1000 * MB), "cpu": (MB, 25 * MB)}

MIN_REPEATS, MIN_DURATION_S = 3, 0.4
"""Times that a size is reduced, and for how long."""


class AllReduceBench:
    """Flat gradients of given sizes on the device, which ``reduce`` sums over the ranks as DDP does: all are sent, then waited for."""

    def __init__(self, sizes_bytes: Sequence[int], world: World, dtype: torch.dtype = torch.float32) -> None:
        self._world = world
        self._flat = [torch.zeros(max(1, size // dtype.itemsize), dtype=dtype, device=world.device.torch_device) for size in sizes_bytes]

    def time_all_reduce(self) -> float:
        """Sums every buffer over the ranks; returns the seconds until this rank has all of them."""
        begin = perf_counter()
        for sent in [dist.all_reduce(flat, group=self._world.group, async_op=True) for flat in self._flat]:
            sent.wait()
        self._world.device.synchronize()
        return perf_counter() - begin


def measure_busbw(world: World, limit_s: float) -> dict[int, float]:
    """Bytes of one all-reduce -> bus bandwidth, the median of several. Larger ones are left out once ``limit_s`` is over.

    Each is timed on the rank that waits longest, so that every rank comes to the same figure.
    """
    reached: dict[int, float] = {}
    end = perf_counter() + limit_s
    for size in SIZES_BYTES[world.device.torch_device.type]:
        buffers = AllReduceBench([size], world)
        first_s = world.all_max(buffers.time_all_reduce())
        if world.all_max(perf_counter() + MIN_REPEATS * first_s - end) > 0 and reached:
            break
        times = max(MIN_REPEATS, min(50, round(MIN_DURATION_S / first_s)))
        reached[size] = bus_bandwidth(size, median(world.all_max(buffers.time_all_reduce()) for _ in range(times)), world.size)
        del buffers
        world.device.empty_cache()
    return reached
