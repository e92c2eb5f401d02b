"""Workloads with an intentional fault on rank FAULT_RANK, in the forward of training step FAULT_STEP."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from ddpbench.workloads.registry import WorkloadSpec

RANK, STEP = int(os.environ.get("FAULT_RANK", "0")), int(os.environ.get("FAULT_STEP", "0"))
STAMP = os.environ.get("FAULT_STAMP")
"""A file that is touched at the fault, from which tests measure time."""

DELAY_S = float(os.environ.get("FAULT_DELAY_S", "0.05"))

FROZEN_S = 9

Fault = Callable[[torch.Tensor], torch.Tensor]
"""A fault, applied to a batch before the model."""


class Misbehaving(nn.Module):
    """A tiny net that calls ``fault`` in step STEP; with ``always`` in every step from there on."""

    def __init__(self, fault: Fault, always: bool, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)
        )
        self.fault, self.always, self.step = fault, always, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        here = not images.is_meta and int(os.environ.get("RANK", "0")) == RANK
        if here and (self.step >= STEP if self.always else self.step == STEP):
            if STAMP:
                Path(STAMP).touch()
            images = self.fault(images)
        self.step += not images.is_meta
        output: torch.Tensor = self.net(images)
        return output


def _raise(images: torch.Tensor) -> torch.Tensor:
    raise ValueError("the model has had enough")


def _kill(images: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return images


def _hang(images: torch.Tensor) -> torch.Tensor:
    time.sleep(3600)
    return images


def _exhaust(images: torch.Tensor) -> torch.Tensor:
    return images + torch.empty(2**50, device=images.device).sum()


def _late(images: torch.Tensor) -> torch.Tensor:
    time.sleep(DELAY_S)
    return images


def _poison(images: torch.Tensor) -> torch.Tensor:
    return images * float("nan")


def _spec(name: str, fault: Fault, always: bool = False, kind: type[Misbehaving] = Misbehaving) -> WorkloadSpec:
    globals()[f"build_{name}"] = partial(_build, kind, fault, always)
    return WorkloadSpec(
        name=name, help=name, dataset="cifar10", image_size=32, classes=10, model=f"misbehaving:build_{name}", batch_cuda=8, batch_cpu=8
    )


def _build(kind: type[Misbehaving], fault: Fault, always: bool, image_size: int, classes: int) -> nn.Module:
    return kind(fault, always, classes)


class AllRanksStall(Misbehaving):
    """Every rank stalls in the same step, long enough to send a heartbeat; one of them is at fault."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.is_meta or self.step < STEP:
            return super().forward(images)
        time.sleep(1.0)
        return _hang(super().forward(images))


def _freeze(images: torch.Tensor) -> torch.Tensor:
    ctypes.PyDLL(None).sleep(FROZEN_S)  # holding the GIL, like code that waits for a swapped-out page
    return images


fine = _spec("fine", lambda images: images)
raises = _spec("raises", _raise)
freezes = _spec("freezes", _freeze, kind=AllRanksStall)
killed = _spec("killed", _kill)
hangs = _spec("hangs", _hang)
exhausts = _spec("exhausts", _exhaust)
late = _spec("late", _late, always=True)
poisoned = _spec("poisoned", _poison)
