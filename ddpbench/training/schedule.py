"""The learning rate over a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ddpbench.record.resolved import Settled

WARM_UP = 0.1
"""The fraction of a training over which ``linear`` rises; until a training's length is known, it stands at this fraction."""

STEP = 0.7
"""What ``step`` multiplies by after every epoch, as torch's own MNIST example does."""


def factor(schedule: str, update: int, updates: int, updates_an_epoch: int) -> float:
    """What the learning rate is multiplied by at ``update`` (from 0) of ``updates``; never 0 before the end."""
    if schedule == "linear":
        rising = max(1, round(WARM_UP * updates))
        return (update + 1) / rising if update < rising else max(0.0, (updates - update) / (updates - rising))
    if schedule == "step":
        return float(STEP ** (update // updates_an_epoch))
    return 1.0


class Schedule:
    """Sets the learning rate before every update. An update that the loss scaler keeps from the optimizer is not counted."""

    def __init__(self, optimizer: torch.optim.Optimizer, config: Settled) -> None:
        self._kind, self._lr = config.schedule, config.lr
        self._updates = self._updates_an_epoch = 0
        self.update = 0
        if self._kind != "constant":
            optimizer.register_step_pre_hook(self._set_rate)

    def plan(self, updates: int, updates_an_epoch: int, update: int = 0) -> None:
        """The training is ``updates`` long, and stands at ``update``."""
        self._updates, self._updates_an_epoch, self.update = updates, max(1, updates_an_epoch), update

    @contextmanager
    def held(self) -> Iterator[None]:
        """Updates that are no part of the training: it goes on from where it stood."""
        stood = self.update
        yield
        self.update = stood

    def _set_rate(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        scale = WARM_UP
        if self._updates:
            scale = factor(self._kind, self.update, self._updates, self._updates_an_epoch)
            self.update += 1
        for group in optimizer.param_groups:
            group["lr"] = self._lr * scale
