"""Link benchmarks: all-reduce bus bandwidth and host-to-device copies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
from torch import distributed as dist

from ddpbench.distributed.world import World
from ddpbench.record.diagnosis import H2DBandwidth
from ddpbench.record.scaling import bus_bandwidth

MB = 10**6
SIZES_BYTES = {"cuda": (MB, 25 * MB, 100 * MB, 1000 * MB), "cpu": (MB, 25 * MB)}

MIN_ALL_REDUCES, MIN_ALL_REDUCE_S = 3, 0.4
"""Minimum number of all-reduces per size, and their minimum total duration."""

MIN_COPIES, MIN_COPY_S = 9, 0.3
"""Minimum number of copies, and their minimum total duration. The first copies bring the link up to speed."""


class AllReduceBench:
    """Flat gradient buffers on the device, all-reduced as DDP does: start all asynchronously, then wait for all."""

    def __init__(self, sizes_bytes: Sequence[int], world: World, dtype: torch.dtype = torch.float32) -> None:
        self._world = world
        self._flat = [torch.zeros(max(1, size // dtype.itemsize), dtype=dtype, device=world.device.torch_device) for size in sizes_bytes]

    def time_all_reduce(self) -> float:
        """All-reduce every buffer; returns the seconds until this rank has all results."""
        begin = perf_counter()
        for work in [dist.all_reduce(flat, group=self._world.group, async_op=True) for flat in self._flat]:
            work.wait()
        self._world.device.synchronize()
        return perf_counter() - begin


def measure_busbw(world: World, limit_s: float) -> dict[int, float]:
    """All-reduce size in bytes -> median bus bandwidth in bytes/s. Skips larger sizes once ``limit_s`` is over.

    Each time is the maximum over ranks, so that every rank gets the same result.
    """
    busbw: dict[int, float] = {}
    end = perf_counter() + limit_s
    for size in SIZES_BYTES[world.device.torch_device.type]:
        benchmark = AllReduceBench([size], world)
        first_s = world.all_max(benchmark.time_all_reduce())
        if world.all_max(perf_counter() + MIN_ALL_REDUCES * first_s - end) > 0 and busbw:
            break
        repeats = max(MIN_ALL_REDUCES, min(50, round(MIN_ALL_REDUCE_S / first_s)))
        busbw[size] = bus_bandwidth(size, median(world.all_max(benchmark.time_all_reduce()) for _ in range(repeats)), world.size)
        del benchmark
        world.device.empty_cache()
    return busbw


def measure_h2d_bandwidth(world: World, batch_bytes: int, samples: int) -> H2DBandwidth | None:
    """Host-to-device bandwidth of a batch, all ranks copying at once; the minimum over ranks. None on CPU ranks.

    All ranks must call it. ``batch_bytes`` is the size of a batch of ``samples`` images as transferred.
    """
    if not world.device.is_cuda:
        return None
    bandwidths: list[float] = []
    for pinned in (True, False):
        world.barrier()
        bandwidths.append(world.all_min(h2d_bytes_per_s(world.device.torch_device, batch_bytes, pinned)))
    return H2DBandwidth(pinned_bytes_per_s=bandwidths[0], pageable_bytes_per_s=bandwidths[1], bytes_per_sample=batch_bytes / samples)


def h2d_bytes_per_s(device: torch.device, num_bytes: int, pinned: bool) -> float:
    """Median bandwidth of consecutive copies of ``num_bytes`` to a GPU, on its clock; the first half is warm-up."""
    device_buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    host_buffer = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned).fill_(1)  # a page is only allocated once written
    copy_s: list[float] = []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    while sum(copy_s) < MIN_COPY_S or len(copy_s) < MIN_COPIES:
        begin.record()
        device_buffer.copy_(host_buffer, non_blocking=True)
        end.record()
        end.synchronize()
        copy_s.append(begin.elapsed_time(end) / 1e3)
    return host_buffer.nbytes / median(copy_s[len(copy_s) // 2 :])
