"""Master weights: float32 copies that the optimizer updates in place of a half model's parameters.

An update smaller than half's resolution would be rounded away; in the masters it accumulates (Micikevicius et al. 2018,
"Mixed Precision Training", section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def make_master_weights(model: nn.Module) -> list[nn.Parameter]:
    """One float32 parameter for each of ``model``'s, in their order: a copy, or itself where it is float32 already."""
    return [each if each.dtype == torch.float32 else nn.Parameter(each.detach().float()) for each in model.parameters()]


def add_to_optimizer_state(optimizer: torch.optim.Optimizer, masters: Sequence[nn.Parameter]) -> None:
    """From now on ``optimizer.state_dict()`` holds the masters too, and ``load_state_dict`` brings them back."""

    def leave(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state["masters"] = [master.detach() for master in masters]

    @torch.no_grad()
    def enter(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        for master, kept in zip(masters, state["masters"], strict=True):
            master.copy_(kept)

    optimizer.register_state_dict_post_hook(leave)
    optimizer.register_load_state_dict_pre_hook(enter)


class MasterWeights:
    """The half parameters of ``model`` beside those that ``optimizer`` holds in their stead; nobody where it holds the model's own."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        held = [each for group in optimizer.param_groups for each in group["params"]]
        pairs = [(own, master) for own, master in zip(model.parameters(), held, strict=True) if own is not master]
        self._parameters: list[torch.Tensor] = [own for own, _ in pairs]
        self._masters: list[torch.Tensor] = [master for _, master in pairs]

    @property
    def dtype(self) -> str:
        """``float32``, as observed; empty where there are none."""
        return "/".join(sorted({str(master.dtype).removeprefix("torch.") for master in self._masters}))

    @torch.no_grad()
    def reset(self) -> None:
        """The parameters are those of a new training."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            master.copy_(parameter)

    @torch.no_grad()
    def sync_from_parameters(self) -> None:
        """What no longer rounds to its parameter starts anew from it: DDP gives every rank the parameters of rank 0."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            master.copy_(torch.where(master.to(parameter.dtype) == parameter, master, parameter.float()))

    @torch.no_grad()
    def copy_grads_in(self) -> None:
        """Gives the masters the gradients of their parameters, in float32 before anything unscales them."""
        gradients, taken = [], []
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
            gradients.append(parameter.grad)
            taken.append(master.grad)
        if taken:
            torch._foreach_copy_(taken, gradients)

    @torch.no_grad()
    def copy_weights_out(self) -> None:
        """Rounds the masters to their parameters."""
        if self._masters:
            torch._foreach_copy_(self._parameters, self._masters)

    def zero_grad(self, set_to_none: bool) -> None:
        """Does for the gradients of the parameters what the optimizer does for those of the masters."""
        for parameter in self._parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
