"""The arithmetic of a model, counted once on the meta device."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SAMPLE = 2  # batch norm over a 1 x 1 map refuses a batch of one


def flops_per_image(model: nn.Module, image_size: int) -> float:
    """Floating-point operations of forward and backward for one image, two a multiply-add. ``model`` is on the meta device."""
    images = torch.empty(SAMPLE, 3, image_size, image_size, device="meta")
    with FlopCounterMode(display=False) as counter:
        model.train()(images).sum().backward()
    return float(counter.get_total_flops()) / SAMPLE
