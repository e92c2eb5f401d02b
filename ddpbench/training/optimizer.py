"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddpbench.record.config import OptimizerImpl, ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.packages import require_modules
from ddpbench.record.registry import PRECISIONS
from ddpbench.training.compile_cache import count_triton_lookups
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
    "triton": {},
}


def check_optimizer_supported(config: ResolvedConfig, is_cuda: bool) -> None:
    """Raise UsageError if the configured implementation cannot update the parameters."""
    if config.optimizer_impl != "triton":
        return
    spec = PRECISIONS[config.precision]
    hint = "use --optimizer-impl fused"
    if not is_cuda:
        raise UsageError("--optimizer-impl triton needs a GPU", hint)
    if config.optimizer != "sgd":
        raise UsageError(f"--optimizer-impl triton updates by SGD, not by {config.optimizer}", hint)
    if spec.model_dtype != "float32" and not spec.master_weights:
        raise UsageError(f"--optimizer-impl triton updates float32 parameters, not those of --precision {spec.name}", hint)
    require_modules("--optimizer-impl triton", "triton")


def can_update(config: ResolvedConfig, is_cuda: bool) -> bool:
    """Whether the configured implementation can update the parameters."""
    try:
        check_optimizer_supported(config, is_cuda)
    except UsageError:
        return False
    return True


def _implementation(config: ResolvedConfig) -> Callable[..., torch.optim.Optimizer]:
    if config.optimizer_impl != "triton":
        return OPTIMIZERS[config.optimizer]
    count_triton_lookups()
    from ddpbench.kernels.sgd import SGD  # Triton, which it imports, takes a second

    return SGD


def implementation_of(optimizer: torch.optim.Optimizer) -> OptimizerImpl:
    """The implementation that updates its first group."""
    own, group = getattr(optimizer, "implementation", ""), optimizer.param_groups[0]
    kinds: tuple[OptimizerImpl, ...] = ("triton", "fused", "foreach")
    return next((kind for kind in kinds if kind == own or group.get(kind)), "loop")


def make_optimizer(model: nn.Module, config: ResolvedConfig) -> torch.optim.Optimizer:
    """The optimizer that ``config`` selects, over all parameters of ``model``, or over their master weights, if the precision has them.

    Raises UsageError if it cannot update those of a user-defined model.
    """
    masters = make_master_weights(model) if PRECISIONS[config.precision].master_weights else None
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, **IMPLEMENTATIONS[config.optimizer_impl]}
    if config.optimizer == "sgd":
        settings["momentum"] = config.momentum
    elif config.cuda_graph and config.device == "cuda":
        settings["capturable"] = True
        warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")  # in the steps before the capture
    try:
        optimizer = _implementation(config)(masters or model.parameters(), **settings)
    except ValueError as problem:
        raise UsageError(f"--optimizer-impl {config.optimizer_impl}: {problem}", "use --optimizer-impl fused") from problem
    if masters:
        add_to_optimizer_state(optimizer, masters)
    if config.optimizer == "sgd" and config.momentum:
        init_momentum_buffers(optimizer)
    return optimizer


@torch.no_grad()
def reset_state(optimizer: torch.optim.Optimizer) -> None:
    """Zero the optimizer's state in place, and remove gradients.

    Momentum, averages and step counts are then as in a new training.
    """
    optimizer.zero_grad(set_to_none=True)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def init_momentum_buffers(optimizer: torch.optim.Optimizer) -> None:
    """Initialise SGD's momentum buffers with zeros.

    This gives the same first update as torch's default. By default the fused kernel creates them uninitialised and, if the loss scaler
    skips the first update, never writes them: the next update turns the parameters into NaN, every later one is skipped, and the run
    looks fast.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


WARMUP_FRACTION = 0.1
"""Fraction of a training over which ``linear`` rises.

Until the training's length is known, it is also the constant factor of the learning rate.
"""

STEP_GAMMA = 0.7
"""Factor of ``step`` per epoch, as in torch's MNIST example."""


def lr_factor(schedule: str, update: int, updates: int, updates_per_epoch: int) -> float:
    """Learning-rate factor at ``update`` (from 0) of ``updates``; never 0 before the end."""
    if schedule == "linear":
        warmup_updates = max(1, round(WARMUP_FRACTION * updates))
        return (update + 1) / warmup_updates if update < warmup_updates else max(0.0, (updates - update) / (updates - warmup_updates))
    if schedule == "step":
        return float(STEP_GAMMA ** (update // updates_per_epoch))
    return 1.0


class LRSchedule:
    """Sets the learning rate before every update.

    Updates that the loss scaler keeps from the optimizer are not counted.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: ResolvedConfig) -> None:
        self._kind, self._lr = config.schedule, config.lr
        self._updates = self._updates_per_epoch = 0
        self.updates_done = 0
        if self._kind != "constant":
            optimizer.register_step_pre_hook(self._set_rate)

    def set_length(self, updates: int, updates_per_epoch: int, updates_done: int = 0) -> None:
        """Set the length of the training to ``updates``, of which ``updates_done`` are done."""
        self._updates, self._updates_per_epoch, self.updates_done = updates, max(1, updates_per_epoch), updates_done

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context whose updates are not counted as part of the training."""
        saved = self.updates_done
        yield
        self.updates_done = saved

    def _set_rate(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        scale = WARMUP_FRACTION
        if self._updates:
            scale = lr_factor(self._kind, self.updates_done, self._updates, self._updates_per_epoch)
            self.updates_done += 1
        for group in optimizer.param_groups:
            group["lr"] = self._lr * scale
