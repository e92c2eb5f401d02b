"""BatchNorm, addition, ReLU and max-pool in one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ddpbench.record.screening import CureCode, Obstacle
from ddpbench.script.cures.cure import Training


class FusedKernels:
    """``ddpbench.kernels.fuse(model)``, by the classes of its modules. The kernels read maps in channels-last order."""

    code: CureCode = "fused-kernels"

    def obstacle(self, training: Training) -> Obstacle | None:
        if training.device.type != "cuda":
            return "no-device-kernel"
        if not any(isinstance(each, nn.BatchNorm2d) for model in training.models for each in model.modules()):
            return "nothing-to-fuse"
        if training.is_compiled:
            return "compiled"
        if torch.are_deterministic_algorithms_enabled():
            return "deterministic"
        if training.differentiates_twice:
            return "second-derivatives"
        from ddpbench.kernels.fusion import count_fusable_norms  # Triton, which it imports, takes a second

        # this traces forward methods of the script, without values
        return None if any(map(count_fusable_norms, training.models)) else "nothing-to-fuse"

    @contextmanager
    def switched_on(self, training: Training) -> Iterator[None]:
        from ddpbench.kernels.fusion import fuse_norms

        _run_kernels(training.device)
        before = [(module, module.__class__) for model in training.models for module in model.modules()]
        try:
            for model in training.models:
                fuse_norms(model)
            yield
        finally:
            for module, plain in before:
                if module.__class__ is not plain:
                    module.__class__ = plain
                    vars(module).pop("pools", None)  # of a FusedBatchNorm2d


def _run_kernels(device: torch.device) -> None:
    """Train a small layer with fused kernels: what fails here would end the script in its own forward."""
    from ddpbench.kernels.fusion import fuse_norms

    layer = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).to(device)
    fuse_norms(layer)
    maps = torch.ones(2, 8, 2, 2, device=device).contiguous(memory_format=torch.channels_last)
    with torch.enable_grad():
        layer(maps).sum().backward()
