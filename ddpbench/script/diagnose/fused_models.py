"""The models of a script with fused kernels, in the windows that try them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from ddpbench.kernels.fusion import fuse_norms
from ddpbench.record.errors import ConfigFailed


@contextmanager
def fused(models: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """``models`` with fused kernels, inside; afterwards they are as before.

    Raises:
        ConfigFailed: They have nothing to fuse.
        Exception: The kernels cannot be compiled for ``device``, or do not run there: as Triton or the driver says.
    """
    _run_kernels(device)
    before = [(module, module.__class__) for model in models for module in model.modules()]
    try:
        for model in models:
            fuse_norms(model)
        if all(module.__class__ is plain for module, plain in before):
            raise ConfigFailed("the models that the script trains now have no BatchNorm to fuse")
        yield
    finally:
        for module, plain in before:
            if module.__class__ is not plain:
                module.__class__ = plain
                vars(module).pop("pools", None)  # of a FusedBatchNorm2d


def _run_kernels(device: torch.device) -> None:
    """Train a small layer with fused kernels: what fails here would end the script in its own forward."""
    layer = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).to(device)
    fuse_norms(layer)
    maps = torch.ones(2, 8, 2, 2, device=device).contiguous(memory_format=torch.channels_last)
    with torch.enable_grad():
        layer(maps).sum().backward()
