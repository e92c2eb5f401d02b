"""Fewer bits: float32 matrices multiplied in TF32, and the forward of the model in bfloat16 where autocast takes that to be safe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from ddpbench.machine.fingerprint import emulates_bfloat16
from ddpbench.record.screening import CureCode, Obstacle
from ddpbench.script.cures.cure import Training


class Tf32Products:
    """``torch.set_float32_matmul_precision("high")``. It changes numbers. Convolutions have a flag of their own, which is on by default."""

    code: CureCode = "tf32-products"

    def obstacle(self, training: Training) -> Obstacle | None:
        if training.device.type != "cuda" or torch.cuda.get_device_capability(training.device) < (8, 0):
            return "no-tf32"
        if training.precision != "torch-default" or any(each.dtype != torch.float32 for each in training.parameters):
            return "other-precision"
        convolutions = (each for model in training.models for each in model.modules() if isinstance(each, _ConvNd))
        if 2 * sum(each.weight.numel() for each in convolutions) > sum(each.numel() for each in training.parameters):
            return "mostly-convolutions"
        if training.is_compiled:  # Dynamo guards on it
            return "compiled"
        try:
            return None if torch.get_float32_matmul_precision() == "highest" else "already-on"
        except RuntimeError:  # the script has set it for one library, and not for another
            return "own-implementation"

    @contextmanager
    def switched_on(self, training: Training) -> Iterator[None]:
        own, settings = torch.get_float32_matmul_precision(), [(each, each.fp32_precision) for each in _matmul_settings()]
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(own)
            for each, precision in settings:  # "none", which follows the setting of all operations, is not "ieee"
                each.fp32_precision = precision


def _matmul_settings() -> list[Any]:
    """What ``set_float32_matmul_precision`` sets, in torch 2.9 and newer."""
    found = (getattr(each, "matmul", None) for each in (torch.backends.cuda, torch.backends.mkldnn))
    return [each for each in found if hasattr(each, "fp32_precision")]


class Bf16Autocast:
    """``torch.autocast(device, torch.bfloat16)`` around the forward of each model. It changes numbers."""

    code: CureCode = "bf16-autocast"

    def obstacle(self, training: Training) -> Obstacle | None:
        if training.is_compiled or any(isinstance(each, torch.jit.ScriptModule) for each in training.own_modules()):
            return "compiled"
        if any(isinstance(each, nn.DataParallel) for each in training.models):
            return "replicated"  # its replicas are other instances
        if any("forward" in vars(each) for each in training.own_modules()):
            return "own-forward"
        if training.precision != "torch-default" or any(each.dtype != torch.float32 for each in training.parameters):
            return "other-precision"
        is_emulated = emulates_bfloat16() if training.device.type == "cpu" else not torch.cuda.is_bf16_supported(including_emulation=False)
        return "no-bfloat16" if is_emulated else None

    @contextmanager
    def switched_on(self, training: Training) -> Iterator[None]:
        with ExitStack() as wrapped:
            for model in training.own_modules():
                wrapped.enter_context(_forward_in_bfloat16(model, training.device.type))
            yield


@contextmanager
def _forward_in_bfloat16(model: nn.Module, device_type: str) -> Iterator[None]:
    """By the class of ``model``, for that one instance: the script may save it, or copy it."""
    kind, watched = type(model), ref(model)
    own, forward = vars(kind).get("forward"), kind.forward

    @wraps(forward)
    def cast_forward(module: nn.Module, *arguments: Any, **options: Any) -> Any:
        if module is not watched():
            return forward(module, *arguments, **options)
        with torch.autocast(device_type, torch.bfloat16):
            return forward(module, *arguments, **options)

    kind.forward = cast_forward
    try:
        yield
    finally:
        if own is None:
            del kind.forward
        else:
            kind.forward = own
