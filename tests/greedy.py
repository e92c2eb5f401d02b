"""A workload that takes more memory than there is, on rank 1 alone and only for batches above four."""

from __future__ import annotations

import os

import torch
from torch import nn

from ddpbench.workloads.catalogue import WorkloadSpec


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
