"""Workloads that take more memory than there is, only for batches above four: on rank 1 alone, or later than in a trial."""

from __future__ import annotations

import os

import torch
from torch import nn

from ddpbench.workloads.catalogue import WorkloadSpec

WHERE = os.environ.get("GREEDY", "step")


class Greedy(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not images.is_meta and len(images) > 4 and os.environ.get("RANK") == "1":
            torch.empty(2**50)
        output: torch.Tensor = self.net(images)
        return output


def build(image_size: int, classes: int) -> nn.Module:
    return Greedy(classes)


greedy = WorkloadSpec(
    name="greedy", help="greedy", dataset="cifar10", image_size=32, classes=10, model="greedy:build", batch_cuda=8, batch_cpu=8
)


class Later(Greedy):
    """It fits for three steps of training; or, where GREEDY is ``validation``, until it is evaluated."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.steps = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.steps += not images.is_meta and self.training
        if not images.is_meta and len(images) > 4 and (self.steps > 3 if WHERE == "step" else not self.training) and on_this_rank():
            torch.empty(2**50)
        output: torch.Tensor = self.net(images)
        return output


def on_this_rank() -> bool:
    return os.environ.get("RANK", "1") == "1"


def build_later(image_size: int, classes: int) -> nn.Module:
    return Later(classes)


later = WorkloadSpec(
    name="later", help="later", dataset="cifar10", image_size=32, classes=10, model="greedy:build_later", batch_cuda=8, batch_cpu=8
)
