"""Engines: how ranks train one model together, behind one interface for the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from ddpbench.distributed.world import World
from ddpbench.machine.step_timer import StepTimer
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.registry import PrecisionSpec
from ddpbench.training.loss_tracker import IsSkipped, SkippedUpdates
from ddpbench.training.master_weights import MasterWeights
from ddpbench.training.precision import autocast, make_loss_scaler
from ddpbench.training.step import Engine, LossFn
from ddpbench.training.step_graph import GraphedEngine

BROADCAST_FLAG = "forward_sync_buffers" if "forward_sync_buffers" in signature(DistributedDataParallel).parameters else "broadcast_buffers"
"""DDP's parameter for broadcasting buffers before each forward; renamed in torch 2.15."""

COMM_HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


class EagerEngine(ABC):
    """An engine whose steps run operator by operator."""

    model: nn.Module
    warmup_steps = 0
    peak_bytes = 0

    @abstractmethod
    def autocast(self) -> AbstractContextManager[Any]:
        """As in ``Engine``."""

    def forward(self, images: torch.Tensor, labels: torch.Tensor, loss_fn: LossFn) -> torch.Tensor:
        with self.autocast():
            return loss_fn(self.model(images), labels)


def _updates_float32(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its gradients can be unscaled before it reads them: in float16, small ones would become 0."""
    return all(parameter.dtype == torch.float32 for group in optimizer.param_groups for parameter in group["params"])


class TorchEngine(EagerEngine):
    """Plain torch with DistributedDataParallel.

    Uses the bare model without a process group or with engine ``none``. In a CUDA graph, float32 gradients are unscaled before the update:
    torch's fused optimizer, if it unscales them itself, writes them a second time. Eager steps update as most scripts do.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, config: ResolvedConfig, spec: PrecisionSpec, world: World
    ) -> None:
        self._optimizer = optimizer
        self._spec = spec
        self._device = world.device
        self._scaler = make_loss_scaler(spec, world.device, config.static_loss_scale)
        self._initial_scaler_state = self._scaler.state_dict()
        self._skipped = SkippedUpdates(optimizer)
        self._master_weights = MasterWeights(model, optimizer)
        self._set_to_none = config.set_to_none
        self._unscales_first = config.cuda_graph and config.optimizer_impl == "fused" and _updates_float32(optimizer)
        self.master_dtype = self._master_weights.dtype
        self.model = model
        if config.uses_ddp(world.is_distributed, world.size):
            self.model = DistributedDataParallel(
                model,
                device_ids=[world.device.torch_device.index] if world.device.is_cuda else None,
                bucket_cap_mb=config.bucket_cap_mb,
                gradient_as_bucket_view=config.gradient_as_bucket_view,
                static_graph=config.static_graph,
                process_group=world.group,
                **{BROADCAST_FLAG: config.broadcast_buffers},  # type: ignore[arg-type]
            )
            self.model.require_backward_grad_sync = config.engine != "no-sync"  # what DDP's no_sync() sets, but permanently
            self._master_weights.sync_from_parameters()
            if config.comm_hook != "none":
                self.model.register_comm_hook(None, COMM_HOOKS[config.comm_hook])

    def autocast(self) -> AbstractContextManager[Any]:
        return autocast(self._spec, self._device)

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()

    def update(self) -> IsSkipped:
        self._master_weights.copy_grads_in()
        if self._unscales_first:
            self._scaler.unscale_(self._optimizer)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._master_weights.copy_weights_out()
        self._optimizer.zero_grad(set_to_none=self._set_to_none)
        self._master_weights.zero_grad(set_to_none=self._set_to_none)
        return self._skipped.pop()

    def scaler_state(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_scaler_state(self, state: Mapping[str, Any]) -> None:
        if state:
            self._scaler.load_state_dict(dict(state))

    def reset(self) -> None:
        self._master_weights.reset()
        self._master_weights.zero_grad(set_to_none=True)
        self.load_scaler_state(self._initial_scaler_state)


class AccelerateEngine(EagerEngine):
    """Hugging Face Accelerate.

    Its Accelerator wraps model and optimizer, and owns autocast and the scaler.
    """

    master_dtype = ""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, config: ResolvedConfig, spec: PrecisionSpec, world: World
    ) -> None:
        from accelerate import Accelerator, DDPCommunicationHookType, DistributedDataParallelKwargs
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)  # else the process-wide state would give the next arm this arm's precision
        ddp = DistributedDataParallelKwargs(
            broadcast_buffers=config.broadcast_buffers,
            **({} if config.bucket_cap_mb is None else {"bucket_cap_mb": config.bucket_cap_mb}),
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            static_graph=config.static_graph,
            comm_hook=DDPCommunicationHookType("no" if config.comm_hook == "none" else config.comm_hook),
        )
        mixed = {None: "no", "float16": "fp16", "bfloat16": "bf16", "float32": "no"}[spec.autocast_dtype]
        self._accelerator = Accelerator(mixed_precision=mixed, cpu=not world.device.is_cuda, kwargs_handlers=[ddp])
        self._skipped = SkippedUpdates(optimizer)
        self.model, self._optimizer = self._accelerator.prepare(model, optimizer)
        self._set_to_none = config.set_to_none
        self._initial_scaler_state = self.scaler_state()

    def autocast(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._accelerator.autocast()
        return context

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def update(self) -> IsSkipped:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=self._set_to_none)
        return self._skipped.pop()

    def scaler_state(self) -> dict[str, Any]:
        return self._accelerator.scaler.state_dict() if self._accelerator.scaler else {}

    def load_scaler_state(self, state: Mapping[str, Any]) -> None:
        if state and self._accelerator.scaler:
            self._accelerator.scaler.load_state_dict(dict(state))

    def reset(self) -> None:
        self.load_scaler_state(self._initial_scaler_state)


def bucket_bytes(model: nn.Module) -> list[int]:
    """Sizes of DDP's buckets in bytes, in the order of their all-reduces.

    Empty without DDP. DDP rebuilds its buckets after the first step. Only a scaling job records them.
    """
    if not isinstance(model, DistributedDataParallel):
        return []
    logging_data = model._get_ddp_logging_data()  # no public API
    return [int(size) for size in (logging_data.get("rebuilt_bucket_sizes") or logging_data.get("bucket_sizes") or "").split(", ") if size]


def make_engine(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: ResolvedConfig,
    spec: PrecisionSpec,
    world: World,
    timer: StepTimer,
    is_resident: bool = False,
) -> Engine:
    """The engine that ``config`` selects. ``is_resident`` says that all batches are the same tensors."""
    kind = AccelerateEngine if config.engine == "accelerate" else TorchEngine
    build = partial(kind, model, optimizer, config, spec, world)
    return GraphedEngine(build, timer, world, is_resident) if config.cuda_graph and world.device.is_cuda else build()
