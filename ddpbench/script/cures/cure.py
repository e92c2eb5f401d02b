"""What a cure is, and the training that it changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddpbench.machine.device import free_gpu_bytes
from ddpbench.record.screening import CureCode, Obstacle
from ddpbench.script.observe.models import is_compiled


@dataclass(frozen=True)
class Training:
    """What a script trains, as far as cures change it.

    Args:
        models: The outermost models.
        optimizers: Those that update them.
        device: Where they are.
        precision: As observed before any cure: a name of ``PRECISIONS``.
        scaled: Those of the optimizers whose gradients a GradScaler scales.
        scalers: The GradScalers that have scaled gradients.
        has_more_optimizers: The script has others, which are not known.
        replays_graphs: It replays CUDA graphs, whose kernels no cure reaches.
        differentiates_twice: It differentiates gradients again.
    """

    models: Sequence[nn.Module]
    optimizers: Sequence[Optimizer]
    device: torch.device
    precision: str = "torch-default"
    scaled: Sequence[Optimizer] = ()
    scalers: Sequence[GradScaler] = ()
    has_more_optimizers: bool = False
    replays_graphs: bool = False
    differentiates_twice: bool = False

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Of all models, each once."""
        return list({id(each): each for model in self.models for each in model.parameters()}.values())

    @property
    def buffers(self) -> list[Tensor]:
        """Of all models, each once."""
        return list({id(each): each for model in self.models for each in model.buffers()}.values())

    @property
    def is_compiled(self) -> bool:
        return any(map(is_compiled, self.models))

    @property
    def has_bucket_views(self) -> bool:
        """Whether gradients are views of DDP's buckets."""
        modules = (each for model in self.models for each in model.modules())
        return any(isinstance(each, DistributedDataParallel) and each.gradient_as_bucket_view for each in modules)

    def own_modules(self) -> list[nn.Module]:
        """The models without DDP around them."""
        return [own_module(each) for each in self.models]


def own_module(model: nn.Module) -> nn.Module:
    """``model`` without DDP around it."""
    return model.module if isinstance(model, DistributedDataParallel) else model


class Cure(Protocol):
    """One setting. All of its state is that of the training: nothing is left of it after a window."""

    code: CureCode

    def obstacle(self, training: Training) -> Obstacle | None:
        """Why it does not apply to ``training``; None if it does."""

    def switched_on(self, training: Training) -> AbstractContextManager[None]:
        """``training`` with this setting, inside; afterwards, and after an error, every setting is the script's own again."""


class Null:
    """Does nothing. What it seems to gain is the noise of the others."""

    code: CureCode = "null"

    def obstacle(self, training: Training) -> Obstacle | None:
        return None

    @contextmanager
    def switched_on(self, training: Training) -> Iterator[None]:
        yield


def free_bytes(device: torch.device) -> float:
    """Memory of a GPU that can be allocated; infinite on the CPU."""
    return free_gpu_bytes(device) if device.type == "cuda" else inf


def owns_its_memory(tensor: Tensor) -> bool:
    """Whether a weight has a storage of its own, that no other process and no buffer of a library refers to."""
    if type(tensor) not in (nn.Parameter, Tensor, nn.Buffer) or tensor._is_view():
        return False
    is_shared = tensor.device.type == "cpu" and tensor.is_shared()  # on a GPU, every storage can be shared
    return not is_shared and tensor.untyped_storage().nbytes() == tensor.nbytes
