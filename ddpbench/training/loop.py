"""The one timed loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import nn

from ddpbench.machine.step_timer import BACKWARD, BROADCAST, DATA, FORWARD, HOST_TO_DEVICE, OPTIMIZER, SYNC, Clock
from ddpbench.training.engines import Engine
from ddpbench.training.loss_tracker import Ledger


class Batches(Protocol):
    """All that the loop asks of a loader."""

    def next_batch(self, in_hand: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels on the device; calls ``in_hand`` when the host has the batch, before the device waits for its copy."""


class Marked(nn.Module):
    """The model inside the engine: being called means that DDP's broadcast of buffers is over."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        super().__init__()
        self.model = model
        self._clock = clock

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self._clock.mark(BROADCAST)
        output: torch.Tensor = self.model(images)
        return output


def mark_last_gradient(parameter: nn.Parameter, clock: Clock) -> None:
    """Local backward ends when the gradient that arrives last is there; what follows is a wait for other ranks."""
    parameter.register_post_accumulate_grad_hook(lambda _: clock.mark(BACKWARD))


def train(steps: int, batches: Batches, engine: Engine, loss_of: nn.Module, clock: Clock, ledger: Ledger) -> None:
    """Trains ``steps`` steps. Nothing here waits for the device."""
    batch_in_hand = partial(clock.mark, DATA)
    clock.begin(steps)
    for _ in range(steps):
        images, labels = batches.next_batch(batch_in_hand)
        clock.mark(HOST_TO_DEVICE)
        with engine.autocast():
            loss = loss_of(engine.model(images), labels)  # Marked stamps the end of the broadcast
        clock.mark(FORWARD)
        engine.backward(loss)  # the last gradient stamps the end of backward
        clock.mark(SYNC)
        engine.update()
        ledger.note(loss)
        clock.mark(OPTIMIZER)
