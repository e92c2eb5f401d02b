"""Optimizers by name, with their state made before the first scaled step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ddpbench.record.registry import PRECISIONS
from ddpbench.record.resolved import ResolvedConfig
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
