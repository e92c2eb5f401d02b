"""How fast batches reach the device from the host's memory."""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor

from ddpbench.distributed.world import World
from ddpbench.record.diagnosis import H2DBandwidth

MIN_DURATION_S = 0.3
MIN_COPIES = 9
"""Copies of each kind. The first of them wake the link up."""


def measure_h2d_bandwidth(world: World, batch_bytes: int, images: int) -> H2DBandwidth | None:
    """Bandwidth of a batch's copy to the device, all ranks at once, the least over ranks; None where a rank has no device of its own.

    Every rank calls it: ``batch_bytes`` on the wire for ``images`` of them.
    """
    if not world.device.is_cuda:
        return None
    there = torch.empty(batch_bytes, dtype=torch.uint8, device=world.device.torch_device)
    bandwidths: list[float] = []
    for pinned in (True, False):
        here = torch.empty(batch_bytes, dtype=torch.uint8, pin_memory=pinned).fill_(1)  # a page never written is no memory yet
        world.barrier()
        bandwidths.append(world.all_min(_measure_bytes_per_s(here, there)))
    return H2DBandwidth(pinned_bytes_per_s=bandwidths[0], pageable_bytes_per_s=bandwidths[1], bytes_per_image=batch_bytes / images)


def _measure_bytes_per_s(here: Tensor, there: Tensor) -> float:
    """The median of copies one after another, on the device's clock."""
    taken_s: list[float] = []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    while sum(taken_s) < MIN_DURATION_S or len(taken_s) < MIN_COPIES:
        begin.record()
        there.copy_(here, non_blocking=True)
        end.record()
        end.synchronize()
        taken_s.append(begin.elapsed_time(end) / 1e3)
    return here.nbytes / median(taken_s[len(taken_s) // 2 :])
