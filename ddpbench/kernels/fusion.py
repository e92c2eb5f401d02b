"""``fuse`` gives a model the fused kernels, wherever a ReLU follows a BatchNorm."""

from __future__ import annotations

import importlib.util
import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ddpbench.kernels.patterns import CannotTrace, Finder, is_plain, trace

HAS_TRITON = importlib.util.find_spec("triton") is not None  # it comes with torch for CUDA
if HAS_TRITON:
    from ddpbench.kernels.deferred import FusedBatchNorm2d
    from ddpbench.kernels.images import ImageConv2d, takes_images
    from ddpbench.kernels.modules import GlobalAvgPool2d, ShortcutConv2d, pools_globally

ModelT = TypeVar("ModelT", bound=nn.Module)

logger = logging.getLogger(__name__)


def fuse(model: ModelT) -> ModelT:
    """``model``, which trains with fused kernels of BatchNorm, addition, ReLU and max-pool from now on, and gives the same results.

    Its BatchNorm2d become ``FusedBatchNorm2d``, the convolutions of its shortcuts ``ShortcutConv2d``, those of images ``ImageConv2d``, and
    its global average pooling ``GlobalAvgPool2d``, with the same parameters and buffers; nothing else changes. The kernels run in training
    mode, on a GPU, with maps (N, C, H, W) in channels-last order, and outside of code that torch.compile compiles; elsewhere torch runs as
    before. Second derivatives are an error. Gradients of a block's output, from ``torch.autograd.grad``, ``retain_grad`` or a hook, lack
    what flows through the shortcut of the next block, unless the hook is registered before that block runs. BatchNorms that are not fused
    are logged, in a warning for each reason.
    """
    names_by_reason = defaultdict(list)
    for name, reason in fuse_norms(model).items():
        names_by_reason[reason].append(name)
    for reason, names in names_by_reason.items():
        logger.warning("BatchNorm not fused (%s): %s", reason, ", ".join(names))
    return model


def fuse_norms(model: nn.Module) -> dict[str, str]:
    """Fuse ``model`` as ``fuse`` does. Returns the names of the BatchNorms that are not fused, and why not."""
    if not HAS_TRITON:
        return dict.fromkeys(_norms(model), "Triton, which compiles the kernels, is not installed")
    untraceable: dict[str, str] = {}
    pools: dict[nn.Module, bool] = {}
    shortcuts: list[nn.Module] = []
    for name, module, found in _traced(model):
        if isinstance(found, CannotTrace):
            untraceable[name] = str(found)
        else:
            pools |= {module.get_submodule(each): is_pooled for each, is_pooled in found.norms.items()}
            shortcuts += [module.get_submodule(each) for each in found.shortcuts]
    for norm, is_pooled in pools.items():
        norm.__class__ = FusedBatchNorm2d
        vars(norm)["pools"] = is_pooled
    for convolution in shortcuts:
        convolution.__class__ = ShortcutConv2d
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and is_plain(module, nn.Conv2d) and takes_images(module):
            module.__class__ = ImageConv2d
        elif isinstance(module, nn.AdaptiveAvgPool2d) and is_plain(module, nn.AdaptiveAvgPool2d) and pools_globally(module):
            module.__class__ = GlobalAvgPool2d
    return {name: _reason(name, norm, untraceable) for name, norm in _norms(model).items() if not isinstance(norm, FusedBatchNorm2d)}


def can_fuse_some(model: nn.Module) -> bool:
    """Whether ``fuse_norms`` would fuse a BatchNorm of ``model``. Stops at the first one."""
    return HAS_TRITON and any(isinstance(found, Finder) and found.norms for _, _, found in _traced(model))


def count_fusable_norms(model: nn.Module) -> int:
    """How many BatchNorms that ``model`` trains ``fuse_norms`` would fuse."""
    found = _traced(model) if HAS_TRITON else ()
    norms = {module.get_submodule(norm) for _, module, each in found if isinstance(each, Finder) for norm in each.norms}
    return sum(norm.training and isinstance(norm.weight, Tensor) and norm.weight.requires_grad for norm in norms)


def _traced(model: nn.Module) -> Iterator[tuple[str, nn.Module, Finder | CannotTrace]]:
    """Every module that contains BatchNorms, with its name and what tracing it has found; DDP itself has nothing to fuse."""
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm | DistributedDataParallel) and any(isinstance(each, _BatchNorm) for each in module.modules()):
            try:
                yield name, module, Finder(module, trace(module))
            except CannotTrace as problem:
                yield name, module, problem


def _norms(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def _reason(name: str, norm: nn.Module, untraceable: dict[str, str]) -> str:
    """Why the BatchNorm ``name`` is not fused."""
    if not is_plain(norm, nn.BatchNorm2d):
        return f"it is a {type(norm).__name__}" if not isinstance(norm, nn.BatchNorm2d) else "it has hooks or a parametrization"
    parents = [name[:end] for end in range(len(name), -1, -1) if name[end : end + 1] in (".", "")]
    return next((untraceable[each] for each in [*parents, ""] if each in untraceable), "no ReLU follows, or something else uses its output")
