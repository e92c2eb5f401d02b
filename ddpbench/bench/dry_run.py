"""One step of an arm, tried by every rank alone before they are tied together.

A rank that runs out of memory between two collectives would leave the others waiting, and take every other arm with it.
"""

from __future__ import annotations

import gc
from functools import partial

import msgspec
import torch
from torch import nn

from ddpbench.bench.together import on_every_rank
from ddpbench.data.loader import Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.distributed.room import with_room
from ddpbench.distributed.world import World
from ddpbench.machine.backends import set_for_training
from ddpbench.record.errors import ArmOver
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.resolved import Settled
from ddpbench.training.optimizer import make_optimizer
from ddpbench.training.precision import autocast
from ddpbench.training.prepare_model import compiled, on_device
from ddpbench.workloads.clone import copied
from ddpbench.workloads.spec import WorkloadSpec

TRIAL = "trying a step alone"
"""The phase of a run in which this happens."""

UNTIL_REPLAYED = 3
"""Steps of a compiled model: the first compiles it and warms it up, the second records its kernels as graphs, the third replays those."""


def agree_that_it_fits(config: Settled, spec: WorkloadSpec, model: nn.Module, loss_of: nn.Module, world: World) -> None:
    """Raises DoesNotFit on every rank where one of them could not hold a step. A copy of ``model`` is tried, as it is uncompiled."""
    alone = msgspec.structs.replace(config, loader=SYNTHETIC, compile="off")

    def step() -> None:
        loader = open_loader(alone, Shard.of(spec.dataset, spec.classes, world))
        _steps_alone(alone, model, loss_of, loader, world)

    with_room(world, f"at batch {config.batch_size}", step)
    _clear_up(world)


def agree_that_it_works(config: Settled, model: nn.Module, loss_of: nn.Module, loader: Loader, world: World) -> None:
    """Raises ArmOver on every rank where one of them could not train on a batch of ``loader``, for whatever reason.

    The loader is closed then. A copy of ``model`` is tried, compiled where it is to be.
    """
    try:
        on_every_rank(world, partial(_steps_alone, config, model, loss_of, loader, world))
    except ArmOver:
        loader.close()
        raise
    finally:
        if config.compile != "off":
            torch._dynamo.reset()  # or the shapes of the next arm count as changes of these
        _clear_up(world)


def _steps_alone(config: Settled, model: nn.Module, loss_of: nn.Module, loader: Loader, world: World) -> None:
    """Forward and backward beside all that a step with others needs.

    That is the optimizer's state, a second set of gradients, as DDP has while it lays out its buckets, and a second batch,
    which a loader copies while the first is trained on.
    """
    device, spec = world.device, PRECISIONS[config.precision]
    set_for_training(spec.tf32)
    model = on_device(copied(model, device.torch), config, device)
    runnable = compiled(model, config)
    images, labels = loader.next_batch(lambda: None)
    beside = [_after_an_update(model, config), torch.empty_like(images), *(torch.empty_like(parameter) for parameter in model.parameters())]
    for _ in range(1 if config.compile == "off" else UNTIL_REPLAYED):
        model.zero_grad()
        with autocast(spec, device):
            loss = loss_of(runnable(images), labels)
        loss.backward()
    device.synchronize()
    del beside


def _after_an_update(model: nn.Module, config: Settled) -> torch.optim.Optimizer:
    """The optimizer with all that it keeps: Adam makes its averages in its first update."""
    optimizer = make_optimizer(model, config)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _clear_up(world: World) -> None:
    gc.collect()
    world.device.release()
