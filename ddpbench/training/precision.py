"""Applies a precision to a model, scales the loss, and observes the dtypes that ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from ddpbench.machine.backends import get_tf32
from ddpbench.machine.device import Device
from ddpbench.record.errors import UsageError
from ddpbench.record.record import ObservedPrecision
from ddpbench.record.registry import PrecisionSpec

COMPUTE_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
BatchNorm = nn.modules.batchnorm._BatchNorm


def check_precision_supported(spec: PrecisionSpec, device: Device, engine: str, static_loss_scale: float | None = None) -> None:
    """Raise UsageError if the device or the engine does not support the precision."""
    if engine == "accelerate" and spec.model_dtype != "float32":
        raise UsageError(
            f"--engine accelerate needs a float32 model, but --precision {spec.name} has a {spec.model_dtype} model", "use --engine ddp"
        )
    if engine == "accelerate" and spec.static_loss_scale(static_loss_scale) is not None:
        raise UsageError("--engine accelerate has no static loss scale", "use --engine ddp, or drop --static-loss-scale")
    if engine == "accelerate" and spec.loss_scaling and not device.is_cuda:
        raise UsageError(
            f"--engine accelerate has no loss scaling on a CPU, which {spec.name} needs", "use --engine ddp or --precision amp-bf16"
        )
    if spec.name == "tf32" and (not device.is_cuda or torch.cuda.get_device_capability(device.torch_device) < (8, 0)):
        raise UsageError(
            f"{device.name} does not support --precision tf32: TF32 needs an NVIDIA GPU of Ampere or newer", "use --precision fp32"
        )
    if spec.layer_dtype == "bfloat16" and device.is_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            f"{device.name} does not support --precision {spec.name}: it has no bfloat16 arithmetic", "use --precision amp-fp16"
        )


@torch.no_grad()
def cast_model(model: nn.Module, spec: PrecisionSpec) -> nn.Module:
    """Cast parameters and buffers of ``model`` to this precision, in place.

    ``model`` must be on the device already. A half-precision model casts its input to its own dtype, and its output to float32, in which
    the loss is computed.
    """
    if spec.model_dtype == "float32":
        return model
    dtype, norm = getattr(torch, spec.model_dtype), getattr(torch, spec.batch_norm_dtype)
    for module in model.modules():
        module_dtype = norm if isinstance(module, BatchNorm) else dtype
        for parameter in module.parameters(recurse=False):
            parameter.data = _cast(parameter.data, module_dtype)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, _cast(buffer, module_dtype))
    model.register_forward_pre_hook(lambda _, inputs: tuple(_cast(each, dtype) for each in inputs))
    model.register_forward_hook(lambda _, __, output: _cast(output, torch.float32))
    return model


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def autocast(spec: PrecisionSpec, device: Device) -> torch.autocast:
    """The autocast context of this precision; disabled if it has none."""
    dtype = getattr(torch, spec.autocast_dtype) if spec.autocast_dtype else None
    return torch.autocast(device.torch_device.type, dtype=dtype, enabled=dtype is not None)


@dataclass
class StepObservation:
    """Dtypes observed in one real training step."""

    first_layer: str = ""
    last_layer: str = ""
    gradients: set[str] = field(default_factory=set)
    last_gradient: nn.Parameter | None = None  # the parameter whose gradient arrived last


@contextmanager
def observe_step(model: nn.Module, compiled: bool) -> Iterator[StepObservation]:
    """Observe one real training step through hooks, which are removed afterwards.

    The output of a convolution or linear layer has the dtype of both operands, whether from autocast or their own. A compiled model runs
    this step eagerly, so that hooks are called and do not become part of the compiled code.
    """
    seen = StepObservation()

    def layer_called(_: nn.Module, __: object, output: torch.Tensor) -> None:
        seen.last_layer = _short(output.dtype)
        seen.first_layer = seen.first_layer or seen.last_layer

    def gradient_ready(parameter: torch.Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        assert parameter.grad is not None
        seen.last_gradient = parameter
        seen.gradients.add(_short(parameter.grad.dtype))

    hooks = [module.register_forward_hook(layer_called) for module in model.modules() if isinstance(module, COMPUTE_LAYERS)]
    hooks += [parameter.register_post_accumulate_grad_hook(gradient_ready) for parameter in model.parameters() if parameter.requires_grad]
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield seen
    finally:
        for hook in hooks:
            hook.remove()


def observe_precision(
    model: nn.Module, seen: StepObservation, optimizer: str, loss_scale: float | None, master_dtype: str = ""
) -> ObservedPrecision:
    """The precision that ran.

    Dtypes of parameters, gradients and batch norms, of the first and last layer, and torch's TF32 flags.
    """
    norms = {_short(each.dtype) for module in model.modules() if isinstance(module, BatchNorm) for each in _float_tensors(module)}
    matmul, cudnn = get_tf32()
    return ObservedPrecision(
        parameter_dtypes=sorted({_short(parameter.dtype) for parameter in model.parameters()}),
        gradient_dtypes=sorted(seen.gradients),
        batch_norm_dtypes=sorted(norms),
        first_layer_dtype=seen.first_layer,
        last_layer_dtype=seen.last_layer,
        tf32_matmul=matmul,
        tf32_cudnn=cudnn,
        loss_scale=loss_scale,
        optimizer=optimizer,
        master_weight_dtype=master_dtype,
    )


def _float_tensors(norm: nn.Module) -> list[torch.Tensor]:
    """Weights and running statistics, without the batch counter."""
    return [each for each in (*norm.parameters(), *norm.buffers()) if each.is_floating_point()]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@runtime_checkable
class FindsInfiniteGradients(Protocol):
    """An optimizer that unscales gradients itself, as ``ddpbench.kernels.sgd.SGD``."""

    def find_infinite_gradients(self) -> torch.Tensor: ...


class GradScaler(torch.amp.GradScaler):
    """Has an optimizer that can find infinite gradients do so: torch's own search writes every gradient that it reads."""

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        if not isinstance(optimizer, FindsInfiniteGradients):
            return super()._check_inf_per_device(optimizer)
        found_inf = optimizer.find_infinite_gradients()
        found: dict[Any, torch.Tensor] = {found_inf.device: found_inf}
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
        return found


class StaticGradScaler(GradScaler):
    """A constant loss scale; updates with overflowed gradients are still skipped.

    Half-precision gradients are unscaled in place, which torch's scaler refuses: a model that is entirely in half precision has no
    others.
    """

    def __init__(self, device: str, scale: float) -> None:
        super().__init__(device, init_scale=scale)
        self._static = float(scale)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """End the step and keep the scale."""
        super().update(self._static)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16=True)


def make_loss_scaler(spec: PrecisionSpec, device: Device, static_scale: float | None) -> GradScaler:
    """The loss scaler of this precision; a pass-through if nothing is scaled.

    The scale is constant at ``static_scale`` if that is set and the precision uses float16.
    """
    scale = spec.static_loss_scale(static_scale)
    if scale is not None:
        return StaticGradScaler(device.torch_device.type, scale)
    return GradScaler(device.torch_device.type, enabled=spec.loss_scaling)
