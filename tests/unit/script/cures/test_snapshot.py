"""A training that is set back goes the same steps again."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from ddpbench.script.cures.catalog import CURES
from ddpbench.script.cures.cure import Training
from ddpbench.script.cures.snapshot import Snapshot


class Loop:
    """With momentum, dropout, noise of its own, running statistics, a loss scale that grows, and a learning rate that falls."""

    def __init__(self, optimizer: Callable[..., Optimizer]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(288, 5))
        self.optimizer = optimizer(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.images, self.labels = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))

    @property
    def training(self) -> Training:
        return Training(models=[self.model], optimizers=[self.optimizer], device=torch.device("cpu"), scalers=[self.scaler])

    def losses(self, steps: int) -> list[float]:
        return [self.step() for _ in range(steps)]

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.images + random.gauss(0, 0.1)), self.labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return loss.item() * self.scaler.get_scale()


@pytest.mark.parametrize("optimizer", [lambda *args, **options: SGD(*args, momentum=0.9, **options), AdamW], ids=["SGD", "AdamW"])
def test_steps_from_a_snapshot_are_the_same_every_time(optimizer: Callable[..., Optimizer]) -> None:
    loop = Loop(optimizer)
    loop.losses(3)
    snapshot = Snapshot(loop.training)
    found = []
    for _ in range(3):
        snapshot.restore()
        with snapshot.settings_held():
            found.append(loop.losses(5))
    assert found[0] == found[1] == found[2]
    assert all(before != after for before, after in pairwise(found[0]))


def test_steps_of_a_cure_that_only_rounds_stay_near() -> None:
    loop = Loop(SGD)
    loop.losses(3)
    snapshot, found = Snapshot(loop.training), []
    for code in ("null", "channels-last"):
        snapshot.restore()
        with snapshot.settings_held(), CURES[code].switched_on(loop.training):
            found.append(loop.losses(5))
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_drawn_random_numbers_are_noticed(p: float) -> None:
    loop = Loop(SGD)
    loop.model[4].p = p
    snapshot = Snapshot(loop.training)
    snapshot.restore()
    assert not snapshot.random_states.torch_has_drawn
    loop.step()
    assert snapshot.random_states.torch_has_drawn is (p > 0)


def test_learning_rate_is_held_and_then_the_scheduler_s_again() -> None:
    loop = Loop(SGD)
    snapshot = Snapshot(loop.training)
    seen = []
    handle = loop.optimizer.register_step_post_hook(lambda own, *_: seen.append(own.param_groups[0]["lr"]))
    with snapshot.settings_held():
        loop.losses(2)
    handle.remove()
    assert seen == [0.05, 0.05]
    loop.step()
    assert loop.optimizer.param_groups[0]["lr"] < 0.05
