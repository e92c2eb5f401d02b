"""A copy of a model on a device, or on none."""

from __future__ import annotations

import copy

import torch
from torch import nn


def clone(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of ``model`` on ``device``, which shares nothing with it. On the meta device its tensors have shapes and no storage.

    Weights go there straight: a copy on the host first takes fresh memory, which for 36 million of them, on two cores of a virtual
    machine, cost 1.3 s where the way to the GPU costs 0.14.
    """
    there: dict[int, object] = {id(own): own.to(device, copy=True) for own in model.buffers()}
    there |= {id(own): nn.Parameter(own.detach().to(device, copy=True), own.requires_grad) for own in model.parameters()}
    return copy.deepcopy(model, there)
