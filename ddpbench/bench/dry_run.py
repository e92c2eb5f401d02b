"""Dry run: each rank tries one step of an arm without the other ranks.

A rank that runs out of memory between two collectives would leave the others waiting and end every other arm with it.
"""

from __future__ import annotations

import gc
from functools import partial

import msgspec
import torch
from torch import nn

from ddpbench.data.loader import Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.distributed.collectives import guard_oom, run_on_all_ranks
from ddpbench.distributed.world import World
from ddpbench.machine.backends import configure_backends
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.registry import PRECISIONS
from ddpbench.training.compile import compile_model, free_compiled
from ddpbench.training.optimizer import make_optimizer
from ddpbench.training.precision import autocast
from ddpbench.training.session import prepare_model
from ddpbench.workloads.init_model import clone
from ddpbench.workloads.spec import WorkloadSpec

DRY_RUN = "dry run"
"""The phase of a run in which the dry run happens."""

COMPILED_DRY_RUN_STEPS = 3
"""Steps of a compiled model: one to compile and warm up, one to capture CUDA graphs, one to replay them."""


def dry_run_memory(config: ResolvedConfig, spec: WorkloadSpec, model: nn.Module, loss_fn: nn.Module, world: World) -> None:
    """Raises OutOfMemory on every rank if one of them cannot hold a step. Runs an uncompiled copy of ``model`` on synthetic data."""
    synthetic_config = msgspec.structs.replace(config, loader=SYNTHETIC, compile="off")

    def step() -> None:
        loader = open_loader(synthetic_config, Shard.from_world(spec.dataset, spec.classes, world))
        _run_steps(synthetic_config, model, loss_fn, loader, world)

    guard_oom(world, f"at batch {config.batch_size}", step)
    _free_memory(world)


def dry_run_training(config: ResolvedConfig, model: nn.Module, loss_fn: nn.Module, loader: Loader, world: World) -> None:
    """Raises ConfigFailed on every rank if one of them cannot train on a batch of ``loader``, for any reason; closes the loader first.

    Runs a copy of ``model``, compiled if ``config`` says so.
    """
    try:
        run_on_all_ranks(world, partial(_run_steps, config, model, loss_fn, loader, world))
    except ConfigFailed:
        loader.close()
        raise
    finally:
        free_compiled(config)
        _free_memory(world)


def _run_steps(config: ResolvedConfig, model: nn.Module, loss_fn: nn.Module, loader: Loader, world: World) -> None:
    """Run forward and backward while holding all that a step of a distributed training needs.

    That is the optimizer state, a second set of gradients, as DDP holds while it builds its buckets, and a second batch, which a
    loader copies during the step.
    """
    device, spec = world.device, PRECISIONS[config.precision]
    configure_backends(spec.tf32, config.cudnn_benchmark_limit)
    model = prepare_model(clone(model, device.torch_device), config, device)
    runnable = compile_model(model, config, is_in_ddp=False)
    images, labels = loader.next_batch(lambda: None)
    held_memory = [
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
    del held_memory


def _optimizer_with_state(model: nn.Module, config: ResolvedConfig) -> torch.optim.Optimizer:
    """The optimizer with all its state: Adam allocates its averages in the first update."""
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
