"""The models of a script with fused kernels, in the windows that try them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from ddpbench.kernels.fusion import fuse_norms


class FusedModels:
    """Gives ``models`` fused kernels for a while. They are traced once, when it is created.

    Raises:
        Exception: The kernels cannot be compiled, or do not run on ``device``: as Triton or the driver says.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        _run_kernels(device)
        before = [(module, module.__class__) for model in models for module in model.modules()]
        for model in models:
            fuse_norms(model)
        self._changed = [(module, plain, module.__class__) for module, plain in before if module.__class__ is not plain]
        self._restore()

    @contextmanager
    def fused(self) -> Iterator[None]:
        for module, _, fused in self._changed:
            module.__class__ = fused
        try:
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        for module, plain, _ in self._changed:
            module.__class__ = plain


def _run_kernels(device: torch.device) -> None:
    """Train a small layer with fused kernels: what fails here would end the script in its own forward."""
    layer = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).to(device)
    fuse_norms(layer)
    maps = torch.ones(2, 8, 2, 2, device=device).contiguous(memory_format=torch.channels_last)
    with torch.enable_grad():
        layer(maps).sum().backward()
