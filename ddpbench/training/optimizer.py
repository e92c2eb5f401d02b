"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddpbench.record.config import ResolvedConfig
from ddpbench.record.registry import PRECISIONS
from ddpbench.training.master_weights import add_to_optimizer_state, make_master_weights

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False, "fused": False},
}


def make_optimizer(model: nn.Module, config: ResolvedConfig) -> torch.optim.Optimizer:
    """The optimizer that ``config`` asks for, over all parameters of ``model`` or, where its precision has them, their masters."""
    masters = make_master_weights(model) if PRECISIONS[config.precision].master_weights else None
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, **IMPLEMENTATIONS[config.optimizer_impl]}
    if config.optimizer == "sgd":
        settings["momentum"] = config.momentum
    optimizer = OPTIMIZERS[config.optimizer](masters or model.parameters(), **settings)
    if masters:
        add_to_optimizer_state(optimizer, masters)
    if config.optimizer == "sgd" and config.momentum:
        init_momentum_buffers(optimizer)
    return optimizer


@torch.no_grad()
def reset_state(optimizer: torch.optim.Optimizer) -> None:
    """Momentum, averages and counts back to zero, where they lie; and no gradients, which a new training has not either."""
    optimizer.zero_grad(set_to_none=True)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def init_momentum_buffers(optimizer: torch.optim.Optimizer) -> None:
    """Gives SGD's momentum buffers zeros to start from, which is the same first update as torch's own.

    Left to itself, the fused kernel makes them uninitialised and, where the loss scaler skips the first update, never
    writes them: the next update turns the parameters into NaN, every later one is skipped, and the run looks fast.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


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
