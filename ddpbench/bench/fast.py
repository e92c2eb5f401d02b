"""The settings that ``--fast`` chooses: those known to be fastest for a workload on a GPU, one rule each. What the user has set stays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from msgspec.structs import replace
from torch import nn

from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.cuda_graph import can_capture
from ddpbench.training.optimizer import can_update
from ddpbench.training.session import fuse_kernels
from ddpbench.workloads.init_model import build_without_weights
from ddpbench.workloads.registry import find_workload

COMPILED_WORKLOADS = ("vgg16-cifar10", "mnist-cnn", "disc-mlp-")
"""How their names begin. Their tensors are so small that compiled kernels in a graph are faster than fused or plain ones."""

Rule = Callable[[Config, ResolvedConfig], ResolvedConfig]
"""Changes a resolved configuration where the requested one leaves a setting open."""


def choose_fast_settings(requested: Config, resolved: ResolvedConfig) -> ResolvedConfig:
    """``resolved``, for a GPU, with the fastest settings that ``requested`` leaves open."""
    for rule in RULES:
        resolved = rule(requested, resolved)
    return resolved


def resolve_fast(requested: Config, config: ResolvedConfig) -> ResolvedConfig:
    """``config``, with which this process has trained, with the settings of ``--fast`` that ``requested`` leaves open.

    The limit of algorithms stays: cuDNN keeps those that it has chosen.
    """
    fast = choose_fast_settings(requested, replace(config, fast=True))
    return replace(fast, cudnn_benchmark_limit=config.cudnn_benchmark_limit)


def can_predict_fast(requested: Config, config: ResolvedConfig) -> bool:
    """Whether ``--fast`` would run fused kernels in CUDA graphs, whose gain is predicted, and ``config`` runs neither."""
    fast = resolve_fast(requested, config)
    return fast.fused_kernels and fast.cuda_graph and fast.compile == "off" and not (config.fused_kernels or config.cuda_graph)


def compile_small_tensors(requested: Config, resolved: ResolvedConfig) -> ResolvedConfig:
    is_open = requested.compile is None and not requested.fused_kernels and requested.engine != "accelerate"
    return replace(resolved, compile="default") if is_open and resolved.workload.startswith(COMPILED_WORKLOADS) else resolved


def combine_kernels(requested: Config, resolved: ResolvedConfig) -> ResolvedConfig:
    return replace(resolved, combo_kernels=True) if requested.combo_kernels is None and resolved.compile != "off" else resolved


def fuse_norms(requested: Config, resolved: ResolvedConfig) -> ResolvedConfig:
    fused = replace(resolved, fused_kernels=True)
    is_open = requested.fused_kernels is None and fused.runs_fused_kernels(is_cuda=True)
    return fused if is_open and has_norms_to_fuse(resolved.workload, resolved.image_size) else resolved


def capture_step(requested: Config, resolved: ResolvedConfig) -> ResolvedConfig:
    return replace(resolved, cuda_graph=True) if requested.cuda_graph is None and can_capture(resolved) else resolved


def try_all_algorithms(requested: Config, resolved: ResolvedConfig) -> ResolvedConfig:
    """Where that takes seconds and gains something: in VGG16, if its images are as small as those of CIFAR-10."""
    is_small = resolved.workload == "vgg16-cifar10" and resolved.image_size == find_workload(resolved.workload).image_size
    return replace(resolved, cudnn_benchmark_limit=0) if requested.cudnn_benchmark_limit is None and is_small else resolved


def update_in_triton(requested: Config, resolved: ResolvedConfig) -> ResolvedConfig:
    """Where the update is a notable part of a step, which is short. What parameters a user-defined model has is not known."""
    own = replace(resolved, optimizer_impl="triton")
    is_short = resolved.compile != "off" and resolved.cuda_graph and ":" not in resolved.workload
    return own if requested.optimizer_impl is None and is_short and can_update(own, is_cuda=True) else resolved


def keep_own_buffers(requested: Config, resolved: ResolvedConfig) -> ResolvedConfig:
    """The buffers are statistics of BatchNorm, which training does not read. Those of rank 0, whose model is saved, are never overwritten.

    What the buffers of a user-defined model are is not known.
    """
    is_open = requested.broadcast_buffers is None and resolved.engine != "none" and not resolved.validate
    return replace(resolved, broadcast_buffers=False) if is_open and ":" not in resolved.workload else resolved


RULES: tuple[Rule, ...] = (
    compile_small_tensors,
    combine_kernels,
    fuse_norms,
    capture_step,
    try_all_algorithms,
    update_in_triton,
    keep_own_buffers,
)


@cache
def has_norms_to_fuse(workload: str, image_size: int | None) -> bool:
    """Whether the fused kernels can run any BatchNorm of this workload."""
    from ddpbench.kernels.fusion import can_fuse_some  # Triton, which it imports, takes a second

    return can_fuse_some(_build(workload, image_size))


def check_norms_to_fuse(workload: str, image_size: int | None) -> None:
    """Raise UsageError if the fused kernels can run no BatchNorm of this workload."""
    if not has_norms_to_fuse(workload, image_size):
        fuse_kernels(_build(workload, image_size), workload)  # which says why not


def _build(workload: str, image_size: int | None) -> nn.Module:
    spec = find_workload(workload)
    return build_without_weights(spec.model, image_size, spec.classes)
