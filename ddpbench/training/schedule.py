"""The learning rate over a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ddpbench.record.resolved import ResolvedConfig

WARMUP_FRACTION = 0.1
"""The fraction of a training over which ``linear`` rises; until a training's length is known, it stands at this fraction."""

STEP_GAMMA = 0.7
"""What ``step`` multiplies by after every epoch, as torch's own MNIST example does."""


def lr_factor(schedule: str, update: int, updates: int, updates_per_epoch: int) -> float:
    """What the learning rate is multiplied by at ``update`` (from 0) of ``updates``; never 0 before the end."""
    if schedule == "linear":
        rising = max(1, round(WARMUP_FRACTION * updates))
        return (update + 1) / rising if update < rising else max(0.0, (updates - update) / (updates - rising))
    if schedule == "step":
        return float(STEP_GAMMA ** (update // updates_per_epoch))
    return 1.0


class LRSchedule:
    """Sets the learning rate before every update. An update that the loss scaler keeps from the optimizer is not counted."""

    def __init__(self, optimizer: torch.optim.Optimizer, config: ResolvedConfig) -> None:
        self._kind, self._lr = config.schedule, config.lr
        self._updates = self._updates_per_epoch = 0
        self.updates_done = 0
        if self._kind != "constant":
            optimizer.register_step_pre_hook(self._set_rate)

    def set_length(self, updates: int, updates_per_epoch: int, updates_done: int = 0) -> None:
        """The training is ``updates`` long, and stands at ``updates_done``."""
        self._updates, self._updates_per_epoch, self.updates_done = updates, max(1, updates_per_epoch), updates_done

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Updates that are no part of the training: it goes on from where it stood."""
        stood = self.updates_done
        yield
        self.updates_done = stood

    def _set_rate(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        scale = WARMUP_FRACTION
        if self._updates:
            scale = lr_factor(self._kind, self.updates_done, self._updates, self._updates_per_epoch)
            self.updates_done += 1
        for group in optimizer.param_groups:
            group["lr"] = self._lr * scale
