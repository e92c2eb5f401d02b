"""A workload and a loader that make rank SLOW_RANK late by DELAY_S a step, in the way that SLOW_IN says: data, compute, host."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from held_up import HeldUp
from torch import nn

from ddpbench.data.synthetic import open_synthetic
from ddpbench.record.loaders import LoaderSpec
from ddpbench.workloads.catalogue import WorkloadSpec

SLOW_IN, SLOW_RANK = os.environ.get("SLOW_IN", ""), int(os.environ.get("SLOW_RANK", "0"))
DELAY_S = float(os.environ.get("DELAY_S", "0"))


def late(kind: str) -> bool:
    return kind == SLOW_IN and int(os.environ.get("RANK", "0")) == SLOW_RANK


def stand_still() -> None:
    """Late, and nothing makes up for it: a host that is ahead of its GPU would."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    time.sleep(DELAY_S)


class Net(nn.Module):
    """A small CNN. Its delay on a processor is work for its core, or time off it; on a GPU, work for the GPU or for its host."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 14 * 14, classes)
        )
        self.more = torch.randn(256, 256)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not images.is_meta:
            if late("compute"):
                self.compute(images.device)
            if late("host"):
                stand_still()
        output: torch.Tensor = self.net(images)
        return output

    def compute(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda._sleep(int(DELAY_S * 1e6 * torch.cuda.get_device_properties(device).clock_rate / 1e3))
            return
        end = time.thread_time() + DELAY_S  # of its core: what others take of it makes it longer
        while time.thread_time() < end:
            torch.mm(self.more, self.more)


def build(image_size: int, classes: int) -> nn.Module:
    return Net(classes)


def open_late(*where: Any) -> HeldUp:
    return HeldUp(open_synthetic(*where), lambda: stand_still() if late("data") else None)


net = WorkloadSpec(
    name="straggling",
    help="one rank late",
    dataset="cifar10",
    image_size=32,
    classes=10,
    model="straggling:build",
    batch_cuda=8192,  # so that the GPU sets the pace, and not its host
    batch_cpu=32,
)
loader = LoaderSpec(
    name="late", help="one rank late", open="straggling:open_late", reads_files=False, on_device=True, datasets=("cifar10",)
)
