"""torch.compile for trainings that take turns in one process."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from ddpbench.record.config import ResolvedConfig
from ddpbench.record.cuda_graph import CUDA_GRAPH_MODES

MAX_TRAININGS = 32
"""Trainings that share compiled code: torch allows a function 256 compiled versions in all, and a model 8."""

_key: tuple[object, ...] = ()  # what the trainings since the last reset have in common
_num_trainings = 0  # since then


def compile_model(model: nn.Module, config: ResolvedConfig, is_in_ddp: bool) -> nn.Module:
    """``model`` itself, or compiled if configured. What an earlier training of this process has compiled is used again if it fits.

    In DDP, torch compiles one graph per bucket. Convolutions stay with cuDNN: inductor's Triton convolutions read another TF32 flag, and
    take minutes to tune.
    """
    if config.compile == "off":
        return model
    from torch._inductor import list_mode_options  # importing it takes more than a second

    _prepare_dynamo(config, is_in_ddp)
    mode_options = list_mode_options(config.compile)  # torch accepts a mode or options, not both
    options = {**mode_options, "combo_kernels": config.combo_kernels, "max_autotune_conv_backends": "ATEN"}
    return torch.compile(model, options=options)  # type: ignore[return-value]


def _prepare_dynamo(config: ResolvedConfig, is_in_ddp: bool) -> None:
    """Forget what was compiled for other shapes or buckets.

    Other shapes would count as changes, and the next ones be compiled as dynamic. Buckets are not among what torch checks before it uses
    compiled code.
    """
    global _key, _num_trainings
    buckets = (config.bucket_cap_mb, config.static_graph) if is_in_ddp else ()
    key = (config.workload, config.batch_size, config.image_size, config.channels_last, buckets)
    limit = _recompile_limit()
    if key != _key or _num_trainings == MAX_TRAININGS:
        torch._dynamo.reset()
        _key, _num_trainings = key, 0
    _num_trainings += 1
    torch._dynamo.config.recompile_limit = limit * _num_trainings


@cache
def _recompile_limit() -> int:
    """How many versions of a function torch compiles before it runs the function eagerly."""
    limit: int = torch._dynamo.config.recompile_limit
    return limit


def free_compiled(config: ResolvedConfig) -> None:
    """Free the device memory that compiled code holds: in modes with CUDA graphs, all code is compiled again."""
    if config.compile in CUDA_GRAPH_MODES:
        torch._dynamo.reset()
