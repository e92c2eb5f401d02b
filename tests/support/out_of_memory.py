"""Workloads that run out of memory for batches above four, on rank 1 or in a single process, immediately or later."""

from __future__ import annotations

import os

import torch
from torch import nn

from ddpbench.workloads.registry import WorkloadSpec

WHERE = os.environ.get("OOM_DURING", "step")


class OutOfMemory(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not images.is_meta and len(images) > 4 and os.environ.get("RANK", "1") == "1" and self.is_due():
            torch.empty(2**50)
        output: torch.Tensor = self.net(images)
        return output

    def is_due(self) -> bool:
        return True


class Later(OutOfMemory):
    """Runs out of memory after three training steps, or in evaluation if OOM_DURING is ``validation``."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.steps = 0

    def is_due(self) -> bool:
        self.steps += self.training
        return self.steps > 3 if WHERE == "step" else not self.training


def build(image_size: int, classes: int) -> nn.Module:
    return OutOfMemory(classes)


def build_later(image_size: int, classes: int) -> nn.Module:
    return Later(classes)


def _workload(name: str, model: str) -> WorkloadSpec:
    return WorkloadSpec(name=name, help=name, dataset="cifar10", image_size=32, classes=10, model=model, batch_cuda=8, batch_cpu=8)


immediate, later = _workload("immediate", "out_of_memory:build"), _workload("later", "out_of_memory:build_later")
