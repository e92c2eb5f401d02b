"""What a training step consists of: the interface between the loop and the engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from ddpbench.training.loss_tracker import IsSkipped

LossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps outputs of the model and labels to the loss."""


class Engine(Protocol):
    """What the training loop needs: the parts of a step."""

    model: nn.Module
    master_dtype: str  # dtype of the master weights; empty if the optimizer updates the model's parameters directly
    warmup_steps: int  # after the first step, until steps run as later ones do

    @property
    def peak_bytes(self) -> int:
        """Peak of device memory in a step; 0 if the allocator's own peak is right."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of the forward pass."""

    def forward(self, images: torch.Tensor, labels: torch.Tensor, loss_fn: LossFn) -> torch.Tensor:
        """The loss of a batch."""

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of ``loss``, averaged over ranks."""

    def update(self) -> IsSkipped:
        """Step the optimizer, unless the scaler skips it; returns whether it does.

        Then set gradients to None, or to zero if configured.
        """

    def scaler_state(self) -> dict[str, Any]:
        """The loss scaler's state; empty without one.

        Synchronises with the device: never call it while timing.
        """

    def load_scaler_state(self, state: Mapping[str, Any]) -> None: ...

    def reset(self) -> None:
        """Reset master weights and loss scale, after the model's parameters were reset."""
