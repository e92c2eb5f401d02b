"""The update of all parameters in one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from ddpbench.record.screening import CureCode, Obstacle
from ddpbench.script.cures.cure import Training

HAVE_FUSED: Mapping[str, tuple[type[Optimizer], ...]] = {"cpu": (Adam, AdamW, SGD, Adagrad), "cuda": (Adam, AdamW, SGD)}
"""Classes of ``torch.optim`` with a fused implementation, by type of device. The constructor of Adagrad takes it on every device."""


class FusedOptimizer:
    """``fused=True``, with what the constructor sets besides.

    By one of its attributes a GradScaler leaves unscaling to the update. A checkpoint that was written before makes the optimizer unfused
    again, but keeps that attribute: the step then raises an error, unless the script keeps it fused as the lines of the diff do. With SGD
    under a GradScaler, a fresh start that overflows leaves a momentum buffer that is not initialised.
    """

    code: CureCode = "fused-optimizer"

    def obstacle(self, training: Training) -> Obstacle | None:
        groups = [group for each in training.optimizers for group in each.param_groups]
        if training.has_more_optimizers:
            return "many-optimizers"
        if not all(type(each) in HAVE_FUSED["cpu"] for each in training.optimizers):
            return "other-optimizer"
        if not all(type(each) in HAVE_FUSED.get(training.device.type, ()) for each in training.optimizers):
            return "no-device-kernel"
        if all(group.get("fused") for group in groups):
            return "already-on"
        if any(group.get("fused") or group.get("foreach") or group.get("differentiable") for group in groups):
            return "own-implementation"
        if not all(type(each) in (Adam, AdamW) for each in training.scaled):
            return "loss-scaler"
        if training.has_bucket_views and any(each.dim() == 4 for each in training.parameters):
            return "bucket-views"
        if not all(type(each) is nn.Parameter for group in groups for each in group["params"]):
            return "other-memory"
        if any(each.grad is not None and each.grad.is_sparse for each in training.parameters):
            return "sparse-gradients"
        try:
            for each in training.optimizers:
                fused_attributes(each, training.device)
        except RuntimeError:
            return "no-device-kernel"
        return None

    @contextmanager
    def switched_on(self, training: Training) -> Iterator[None]:
        groups = [(group, group.get("fused")) for each in training.optimizers for group in each.param_groups]
        attributes = [(each, fused_attributes(each, training.device), dict(vars(each))) for each in training.optimizers]
        steps = [(state, state["step"].device) for each in training.optimizers for state in each.state.values() if _counts_steps(state)]
        try:
            for optimizer, added, _ in attributes:
                vars(optimizer).update(added)
                for parameter, state in optimizer.state.items():
                    if _counts_steps(state):
                        state["step"] = state["step"].to(parameter.device)
            for group, _ in groups:
                group["fused"] = True
            yield
        finally:
            for group, fused in groups:
                group["fused"] = fused
            for optimizer, added, before in attributes:
                for name in added:
                    vars(optimizer).pop(name, None)
                    vars(optimizer).update({name: before[name]} if name in before else {})
            known = {id(state): device for state, device in steps}
            for optimizer in training.optimizers:
                for state in filter(_counts_steps, optimizer.state.values()):  # a new one counts on the CPU, as without this
                    state["step"] = state["step"].to(known.get(id(state), "cpu"))


def fused_attributes(optimizer: Optimizer, device: torch.device) -> Mapping[str, Any]:
    """The attributes that only the constructor of a fused one of its class sets.

    Raises RuntimeError if that is not implemented for ``device``.
    """
    kind = type(optimizer)
    plain, fused = (vars(kind([nn.Parameter(torch.zeros(1, device=device))], lr=0.1, fused=each)) for each in (False, True))  # type: ignore[call-arg]
    return {name: value for name, value in fused.items() if name not in plain}


def _counts_steps(state: Mapping[str, Any]) -> bool:
    return isinstance(state.get("step"), Tensor)
