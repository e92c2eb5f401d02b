"""torch.compile for trainings that take turns in one process."""

from __future__ import annotations

import torch
from torch import nn

from ddpbench.record.config import CompileMode, ResolvedConfig

CUDA_GRAPH_MODES: tuple[CompileMode, ...] = ("reduce-overhead", "max-autotune")
"""Modes whose compiled code holds device memory, in the pools of its CUDA graphs."""

MAX_COMPILATIONS = 64
"""Compiled versions of one function, for ``recompile_limit``. Beyond torch's own limit of 8, which is for one model, it runs eagerly."""

_shapes: tuple[object, ...] = ()  # of the trainings compiled since the last reset
_num_compiled = 0  # trainings compiled since then


def compile_model(model: nn.Module, config: ResolvedConfig) -> nn.Module:
    """``model`` itself, or compiled if configured. What an earlier training of this process has compiled is used again if it fits.

    Convolutions stay with cuDNN: inductor's Triton convolutions read another TF32 flag, and take minutes to tune.
    """
    if config.compile == "off":
        return model
    from torch._inductor import list_mode_options  # importing it takes more than a second

    _prepare_dynamo(config)
    options = {**list_mode_options(config.compile), "max_autotune_conv_backends": "ATEN"}  # torch accepts a mode or options, not both
    return torch.compile(model, options=options)  # type: ignore[return-value]


def _prepare_dynamo(config: ResolvedConfig) -> None:
    """Forget what was compiled for other shapes, which would count as changes, so that the next ones compile as dynamic."""
    global _shapes, _num_compiled
    shapes = (config.workload, config.batch_size, config.image_size, config.channels_last)
    if shapes != _shapes or 2 * _num_compiled >= MAX_COMPILATIONS:  # a training may compile twice
        torch._dynamo.reset()
        _shapes, _num_compiled = shapes, 0
    _num_compiled += 1
    torch._dynamo.config.recompile_limit = MAX_COMPILATIONS


def free_compiled(config: ResolvedConfig) -> None:
    """Free the device memory that compiled code holds. Then it must be compiled again."""
    if config.compile in CUDA_GRAPH_MODES:
        torch._dynamo.reset()
