"""One step of an arm, tried by every rank alone before they are tied together.

A rank that runs out of memory between two collectives would leave the others waiting, and take every other arm with it.
"""

from __future__ import annotations

import gc
from functools import partial

import msgspec
import torch
from torch import nn

from ddpbench.bench.together import run_on_all_ranks
from ddpbench.data.loader import Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.distributed.collectives import guard_oom
from ddpbench.distributed.world import World
from ddpbench.machine.backends import configure_backends
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.registry import PRECISIONS
from ddpbench.training.optimizer import make_optimizer
from ddpbench.training.precision import autocast
from ddpbench.training.session import compile_model, prepare_model
from ddpbench.workloads.init_model import clone
from ddpbench.workloads.spec import WorkloadSpec

DRY_RUN = "trying a step alone"
"""The phase of a run in which this happens."""

COMPILED_DRY_RUN_STEPS = 3
"""Steps of a compiled model: the first compiles it and warms it up, the second records its kernels as graphs, the third replays those."""


def dry_run_memory(config: ResolvedConfig, spec: WorkloadSpec, model: nn.Module, loss_fn: nn.Module, world: World) -> None:
    """Raises DoesNotFit on every rank where one of them could not hold a step. A copy of ``model`` is tried, as it is uncompiled."""
    alone = msgspec.structs.replace(config, loader=SYNTHETIC, compile="off")

    def step() -> None:
        loader = open_loader(alone, Shard.from_world(spec.dataset, spec.classes, world))
        _run_steps(alone, model, loss_fn, loader, world)

    guard_oom(world, f"at batch {config.batch_size}", step)
    _free_memory(world)


def dry_run_training(config: ResolvedConfig, model: nn.Module, loss_fn: nn.Module, loader: Loader, world: World) -> None:
    """Raises ArmOver on every rank where one of them could not train on a batch of ``loader``, for whatever reason.

    The loader is closed then. A copy of ``model`` is tried, compiled where it is to be.
    """
    try:
        run_on_all_ranks(world, partial(_run_steps, config, model, loss_fn, loader, world))
    except ConfigFailed:
        loader.close()
        raise
    finally:
        if config.compile != "off":
            torch._dynamo.reset()  # or the shapes of the next arm count as changes of these
        _free_memory(world)


def _run_steps(config: ResolvedConfig, model: nn.Module, loss_fn: nn.Module, loader: Loader, world: World) -> None:
    """Forward and backward beside all that a step with others needs.

    That is the optimizer's state, a second set of gradients, as DDP has while it lays out its buckets, and a second batch,
    which a loader copies while the first is trained on.
    """
    device, spec = world.device, PRECISIONS[config.precision]
    configure_backends(spec.tf32)
    model = prepare_model(clone(model, device.torch_device), config, device)
    runnable = compile_model(model, config)
    images, labels = loader.next_batch(lambda: None)
    beside = [
        _optimizer_with_state(model, config),
        torch.empty_like(images),
        *(torch.empty_like(parameter) for parameter in model.parameters()),
    ]
    for _ in range(1 if config.compile == "off" else COMPILED_DRY_RUN_STEPS):
        model.zero_grad()
        with autocast(spec, device):
            loss = loss_fn(runnable(images), labels)
        loss.backward()
    device.synchronize()
    del beside


def _optimizer_with_state(model: nn.Module, config: ResolvedConfig) -> torch.optim.Optimizer:
    """The optimizer with all that it keeps: Adam makes its averages in its first update."""
    optimizer = make_optimizer(model, config)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _free_memory(world: World) -> None:
    gc.collect()
    world.device.empty_cache()
