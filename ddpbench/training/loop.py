"""The timed training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from ddpbench.data.loader import Loader
from ddpbench.machine.step_timer import BACKWARD, BROADCAST, DATA, FORWARD, HOST_TO_DEVICE, OPTIMIZER, SYNC, StepTimer
from ddpbench.training.loss_tracker import LossTracker
from ddpbench.training.step import Engine


class TimedModel(nn.Module):
    """The model inside the engine: its forward begins when DDP's broadcast of buffers is over."""

    def __init__(self, model: nn.Module, timer: StepTimer) -> None:
        super().__init__()
        self.model = model
        self._timer = timer

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self._timer.mark(BROADCAST)
        output: torch.Tensor = self.model(images)
        return output


def mark_last_gradient(parameter: nn.Parameter, timer: StepTimer) -> None:
    """Mark the end of local backward when the last gradient is ready.

    ``parameter`` is the one whose gradient arrives last. What follows is a wait for other ranks.
    """
    parameter.register_post_accumulate_grad_hook(lambda _: timer.mark(BACKWARD))


def train(steps: int, loader: Loader, engine: Engine, loss_fn: nn.Module, timer: StepTimer, loss_tracker: LossTracker) -> None:
    """Train ``steps`` steps, without waiting for the device."""
    mark_data = partial(timer.mark, DATA)
    timer.begin(steps)
    for _ in range(steps):
        images, labels = loader.next_batch(mark_data)
        timer.mark(HOST_TO_DEVICE)
        loss = engine.forward(images, labels, loss_fn)  # TimedModel marks the end of the broadcast
        timer.mark(FORWARD)
        engine.backward(loss)  # mark_last_gradient marks the end of backward
        timer.mark(SYNC)
        loss_tracker.record_step(loss, engine.update())
        timer.mark(OPTIMIZER)


LOSSES: Mapping[str, Callable[[], nn.Module]] = {"cross-entropy": nn.CrossEntropyLoss, "mse": nn.MSELoss}
