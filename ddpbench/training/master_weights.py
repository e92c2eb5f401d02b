"""Float32 master weights.

The optimizer updates these copies in place of half-precision parameters. An update smaller than the resolution of half precision would be
rounded away; in the master weights it accumulates (Micikevicius et al. 2018, "Mixed Precision Training", section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def make_master_weights(model: nn.Module) -> list[nn.Parameter]:
    """One float32 parameter per parameter of ``model``, in order.

    It is a copy, or the parameter itself if that is float32.
    """
    return [each if each.dtype == torch.float32 else nn.Parameter(each.detach().float()) for each in model.parameters()]


def add_to_optimizer_state(optimizer: torch.optim.Optimizer, masters: Sequence[nn.Parameter]) -> None:
    """Include ``masters`` in ``optimizer.state_dict()``, and restore them in ``load_state_dict``."""

    def save_masters(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state["masters"] = [master.detach() for master in masters]

    @torch.no_grad()
    def load_masters(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        for master, saved in zip(masters, state["masters"], strict=True):
            master.copy_(saved)

    optimizer.register_state_dict_post_hook(save_masters)
    optimizer.register_load_state_dict_pre_hook(load_masters)


class MasterWeights:
    """Half-precision parameters paired with their master weights.

    The parameters are those of ``model``, the master weights those in ``optimizer``. Empty if the optimizer holds the model's own
    parameters.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimized = [each for group in optimizer.param_groups for each in group["params"]]
        pairs = [(parameter, master) for parameter, master in zip(model.parameters(), optimized, strict=True) if parameter is not master]
        self._parameters: list[torch.Tensor] = [parameter for parameter, _ in pairs]
        self._masters: list[torch.Tensor] = [master for _, master in pairs]

    @property
    def dtype(self) -> str:
        """Observed dtype of the master weights, ``float32``; empty if there are none."""
        return "/".join(sorted({str(master.dtype).removeprefix("torch.") for master in self._masters}))

    @torch.no_grad()
    def reset(self) -> None:
        """Copy the parameters into the master weights, after the parameters were reset."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            master.copy_(parameter)

    @torch.no_grad()
    def sync_from_parameters(self) -> None:
        """Copy parameter values into master weights that no longer round to them.

        DDP broadcasts the parameters of rank 0 to all ranks.
        """
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            master.copy_(torch.where(master.to(parameter.dtype) == parameter, master, parameter.float()))

    @torch.no_grad()
    def copy_grads_in(self) -> None:
        """Copy the gradients into the master weights, in float32, before they are unscaled."""
        gradients, master_gradients = [], []
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
            gradients.append(parameter.grad)
            master_gradients.append(master.grad)
        if master_gradients:
            torch._foreach_copy_(master_gradients, gradients)

    @torch.no_grad()
    def copy_weights_out(self) -> None:
        """Round the master weights into the parameters."""
        if self._masters:
            torch._foreach_copy_(self._parameters, self._masters)

    def zero_grad(self, set_to_none: bool) -> None:
        """Reset the parameters' gradients, as the optimizer does for those of the master weights."""
        for parameter in self._parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
