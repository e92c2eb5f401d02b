"""One step of an arm, tried by every rank alone before they are tied together.

A rank that runs out of memory between two collectives would leave the others waiting, and take every other arm with it.
"""

from __future__ import annotations

import copy
import gc

import msgspec
import torch
from torch import nn

from ddpbench.data.open import open_loader
from ddpbench.machine.room import with_room
from ddpbench.machine.world import World
from ddpbench.record.catalogue import PRECISIONS
from ddpbench.record.config import Config
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.training.optimizer import make_optimizer
from ddpbench.training.precision import autocast
from ddpbench.training.session import on_device
from ddpbench.workloads.spec import WorkloadSpec

TRIAL = "trying a step alone"
"""The phase of a run in which this happens."""


def agree_that_it_fits(config: Config, spec: WorkloadSpec, model: nn.Module, loss_of: nn.Module, world: World) -> None:
    """Raises DoesNotFit on every rank where one of them could not hold a step. A copy of ``model`` is tried."""
    with_room(world, f"at batch {config.batch_size}", lambda: _step_alone(config, spec, model, loss_of, world))
    gc.collect()
    world.device.release()


def _step_alone(config: Config, spec: WorkloadSpec, model: nn.Module, loss_of: nn.Module, world: World) -> None:
    """Forward and backward beside all that a step with others needs.

    That is the optimizer's state, a second set of gradients, as DDP has while it lays out its buckets, and a second batch,
    which a loader copies while the first is trained on.
    """
    device = world.device
    alone = msgspec.structs.replace(config, loader=SYNTHETIC)
    model = on_device(copy.deepcopy(model), config, device)
    images, labels = open_loader(alone, spec.dataset, spec.classes, world.rank, world.size, device.torch).next_batch(lambda: None)
    beside = [_after_an_update(model, config), torch.empty_like(images), *(torch.empty_like(parameter) for parameter in model.parameters())]
    with autocast(PRECISIONS[config.precision], device):
        loss = loss_of(model(images), labels)
    loss.backward()
    device.synchronize()
    del beside


def _after_an_update(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """The optimizer with all that it keeps: Adam makes its averages in its first update."""
    optimizer = make_optimizer(model, config)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer
