"""BatchNorm with addition, ReLU and max-pool as functions of modules, in fused kernels.

Autograd stands around the operators: an operator with a gradient of its own may neither update running statistics nor return aliases.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ddpbench.kernels.ops import batch_norm_relu, batch_norm_relu_backward, batch_statistics
from ddpbench.kernels.pool_ops import batch_norm_relu_pool, batch_norm_relu_pool_backward
from ddpbench.kernels.tiles import is_interpreted

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Of feature maps that the kernels take."""


def can_fuse(y: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Whether the kernels can run ``norm`` on ``y`` in channels-last order.

    They cannot in eval mode, with frozen parameters, without gradients, or on a CPU.
    """
    if not (norm.training and norm.track_running_stats and norm.momentum is not None and torch.is_grad_enabled()):
        return False
    tensors = norm.weight, norm.bias, norm.running_mean, norm.running_var
    return (
        y.dim() == 4
        and y.dtype in DTYPES
        and (y.is_cuda or is_interpreted())
        and y.numel() > y.shape[1]  # torch refuses to train on a single pixel
        and all(each is not None and each.shape == (y.shape[1],) and each.device == y.device and each.stride() == (1,) for each in tensors)
        and norm.weight.requires_grad
        and norm.bias.requires_grad
        and norm.num_batches_tracked is not None
        and norm.num_batches_tracked.device == y.device
    )


def fits(other: Tensor, y: Tensor) -> bool:
    """Whether a kernel can add ``other`` to the normalized ``y``."""
    is_alike = other.shape == y.shape and other.dtype == y.dtype and other.device == y.device
    return is_alike and other.is_contiguous(memory_format=torch.channels_last)


def batch_statistics_of(y: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Statistics of the batch ``y``, for the functions below. Updates those of ``norm``, as a call of it does."""
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    stats: Tensor = batch_statistics(y.detach(), *running, norm.momentum, norm.eps)
    return stats


def norm_relu(y: Tensor, norm: nn.BatchNorm2d, stats: Tensor) -> Tensor:
    """``relu(norm(y))`` for ``y`` (N, C, H, W) and its statistics."""
    out: Tensor = NormReLU.apply(y, norm.weight, norm.bias, stats)
    return out


def norm_add_relu(
    y: Tensor,
    norm: nn.BatchNorm2d,
    stats: Tensor,
    other: Tensor,
    other_norm: nn.BatchNorm2d | None = None,
    other_stats: Tensor | None = None,
) -> Tensor:
    """``relu(norm(y) + other)``, or ``relu(norm(y) + other_norm(other))``, for ``y`` and ``other`` (N, C, H, W) and their statistics.

    If ``other`` is such a result itself, its gradient from here is added to that from elsewhere in its own backward pass.
    """
    others = twin_of(other), *((other_norm.weight, other_norm.bias) if other_norm else (None, None)), other_stats
    out, second = NormAddReLU.apply(y, norm.weight, norm.bias, stats, *others)
    out._ddpbench_twin = second
    result: Tensor = out
    return result


def twin_of(tensor: Tensor) -> Tensor:
    """The second output of the function that has made ``tensor``, if that was ``norm_add_relu``, else ``tensor`` itself.

    Both have the same values, and ``norm_add_relu`` adds their gradients in its backward kernel. A hook of ``tensor`` must see the whole
    gradient, so with one there is no second output; a hook that is registered later sees only the gradient of the first.
    """
    second: Tensor | None = getattr(tensor, "_ddpbench_twin", None)
    if second is None or second.grad_fn is not tensor.grad_fn or not _shares_values(second, tensor):
        return tensor
    return tensor if tensor._backward_hooks or tensor.retains_grad else second


def _shares_values(one: Tensor, other: Tensor) -> bool:
    """Whether both are the same elements of the same memory, as ``Tensor.is_set_to`` says of tensors that are not fake."""
    views = [(each.untyped_storage()._cdata, each.storage_offset(), each.shape, each.stride()) for each in (one, other)]
    return views[0] == views[1]


def norm_relu_pool(y: Tensor, norm: nn.BatchNorm2d, stats: Tensor) -> Tensor:
    """``relu(norm(y))`` in a max-pool of 3x3 with stride 2 and padding 1, for ``y`` (N, C, H, W) of even size and its statistics."""
    out: Tensor = NormReLUPool.apply(y, norm.weight, norm.bias, stats)
    return out


class NormReLU(torch.autograd.Function):
    """relu(bn(y)). The backward pass finds from ``y`` where the ReLU is open."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, bias: Tensor, stats: Tensor) -> Tensor:
        ctx.save_for_backward(y, weight, bias, stats)
        out: Tensor = batch_norm_relu(y, stats, weight, bias, None, None, None, None)[0]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, weight, bias, stats = ctx.saved_tensors
        empty = y.new_empty(0, dtype=torch.uint8)
        y_grad, _, grads = batch_norm_relu_backward(_channels_last(grad), None, y, stats, weight, bias, empty, None, None, None)
        bias_grad, weight_grad = grads.unbind()
        return y_grad, weight_grad.to(weight.dtype), bias_grad.to(bias.dtype), None


class NormAddReLU(torch.autograd.Function):
    """relu(bn(y) + other) or relu(bn(y) + bn(other)), returned twice."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        stats: Tensor,
        other: Tensor,
        other_weight: Tensor | None,
        other_bias: Tensor | None,
        other_stats: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        out, positive = batch_norm_relu(y, stats, weight, bias, other, other_stats, other_weight, other_bias)
        kept = None if other_stats is None else other
        ctx.save_for_backward(y, weight, bias, stats, positive, kept, other_weight, other_stats)
        ctx.set_materialize_grads(False)
        return out, out.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, second_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        y, weight, bias, stats, positive, other, other_weight, other_stats = ctx.saved_tensors
        given = [_channels_last(each) for each in (grad, second_grad) if each is not None]
        if not given:
            return (None,) * 8
        first, second = (*given, None)[:2]
        y_grad, other_grad, grads = batch_norm_relu_backward(
            first, second, y, stats, weight, bias, positive, other, other_stats, other_weight
        )
        bias_grad, weight_grad, *rest = grads.unbind()
        others = (rest[0].to(other_weight.dtype), bias_grad.to(other_weight.dtype)) if rest else (None, None)
        return y_grad, weight_grad.to(weight.dtype), bias_grad.to(bias.dtype), None, other_grad, *others, None


class NormReLUPool(torch.autograd.Function):
    """The maxima of relu(bn(y)) in windows."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, bias: Tensor, stats: Tensor) -> Tensor:
        pooled: tuple[Tensor, Tensor] = batch_norm_relu_pool(y, stats, weight, bias)
        out, position = pooled
        ctx.save_for_backward(y, weight, bias, stats, position)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, weight, bias, stats, position = ctx.saved_tensors
        y_grad, grads = batch_norm_relu_pool_backward(_channels_last(grad), position, y, stats, weight)
        bias_grad, weight_grad = grads.unbind()
        return y_grad, weight_grad.to(weight.dtype), bias_grad.to(bias.dtype), None


def _channels_last(grad: Tensor) -> Tensor:
    return grad.contiguous(memory_format=torch.channels_last)
