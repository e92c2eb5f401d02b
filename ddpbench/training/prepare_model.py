"""A model as it is trained."""

from __future__ import annotations

import torch
from torch import nn

from ddpbench.machine.device import Device
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.resolved import ResolvedConfig
from ddpbench.training.precision import cast_model


def compile_model(model: nn.Module, config: ResolvedConfig) -> nn.Module:
    """What runs ``model``, which is on the device: itself, unless it is to be compiled.

    Convolutions stay with cuDNN: inductor's Triton ones read another TF32 switch, and take minutes to tune.
    """
    if config.compile == "off":
        return model
    from torch._inductor import list_mode_options  # importing it takes more than a second

    options = {**list_mode_options(config.compile), "max_autotune_conv_backends": "ATEN"}  # torch takes a mode or options, not both
    return torch.compile(model, options=options)  # type: ignore[return-value]


def prepare_model(model: nn.Module, config: ResolvedConfig, device: Device) -> nn.Module:
    """``model`` on the device, in the dtypes and the memory layout asked for."""
    model = cast_model(model.to(device.torch_device).train(), PRECISIONS[config.precision])
    return model.to(memory_format=torch.channels_last) if config.channels_last else model
