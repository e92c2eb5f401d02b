"""Which training steps can be captured as CUDA graphs."""

from __future__ import annotations

from ddpbench.record.config import CompileMode, OptimizerImpl, ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.registry import PRECISIONS

UNSCALING_OPTIMIZERS: tuple[OptimizerImpl, ...] = ("fused", "triton")
"""Implementations that take the loss scale, and whether to skip the update, as tensors on the device."""

CUDA_GRAPH_MODES: tuple[CompileMode, ...] = ("reduce-overhead", "max-autotune")
"""Modes whose compiled code holds device memory, in the pools of its CUDA graphs."""


def check_graph_supported(config: ResolvedConfig) -> None:
    """Raise UsageError if the step of ``config`` cannot be captured."""
    if config.engine == "accelerate":
        raise UsageError("--cuda-graph cannot capture a step of --engine accelerate", "use --engine ddp")
    if config.schedule != "constant":
        raise UsageError("--cuda-graph replays one learning rate, which --schedule changes", "use --schedule constant")
    if config.compile in CUDA_GRAPH_MODES:
        raise UsageError(f"--compile {config.compile} already uses CUDA graphs", "use --compile default with --cuda-graph")
    if config.share_gpu and config.engine != "none":
        raise UsageError("--cuda-graph cannot capture gradient sync over gloo, which --share-gpu needs", "use --engine none")
    if not config.set_to_none:
        raise UsageError("--cuda-graph needs gradients that are set to None", "remove --no-set-to-none")
    if PRECISIONS[config.precision].scales_loss(config.static_loss_scale) and config.optimizer_impl not in UNSCALING_OPTIMIZERS:
        raise UsageError(
            f"--optimizer-impl {config.optimizer_impl} waits for the loss scaler, which a graph cannot", "use --optimizer-impl fused"
        )


def can_capture(config: ResolvedConfig) -> bool:
    """Whether the step of ``config`` can be captured."""
    try:
        check_graph_supported(config)
    except UsageError:
        return False
    return True
