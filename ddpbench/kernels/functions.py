"""BatchNorm with addition and ReLU as functions of modules: in fused kernels where these can run, else by torch.

Autograd stands around the operators: an operator with a gradient of its own may neither update running statistics nor return aliases.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ddpbench.kernels.ops import batch_norm_relu, batch_norm_relu_backward, batch_statistics
from ddpbench.kernels.pool_ops import batch_norm_relu_pool, batch_norm_relu_pool_backward
from ddpbench.kernels.tiles import is_interpreted

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Of feature maps that the kernels take."""


def can_fuse(y: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Whether the kernels can run ``norm`` on ``y``. In eval mode they cannot, and not with frozen parameters, or on a CPU."""
    return (
        type(norm) is nn.BatchNorm2d
        and norm.training
        and norm.momentum is not None
        and all(each is not None and each.requires_grad for each in (norm.weight, norm.bias))
        and norm.running_mean is not None
        and y.dtype in DTYPES
        and (y.is_cuda or is_interpreted())
        and y.is_contiguous(memory_format=torch.channels_last)
        and y.numel() > y.shape[1]  # torch refuses to train on a single pixel
    )


def norm_relu(y: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """``relu(norm(y))`` for ``y`` (N, C, H, W)."""
    if not can_fuse(y, norm):
        return functional.relu(norm(y))
    out: Tensor = NormReLU.apply(y, norm.weight, norm.bias, _statistics(y, norm))
    return out


def norm_add_relu(y: Tensor, norm: nn.BatchNorm2d, other: Tensor, other_norm: nn.BatchNorm2d | None = None) -> Tensor:
    """``relu(norm(y) + other)``, or ``relu(norm(y) + other_norm(other))``, for ``y`` and ``other`` (N, C, H, W).

    A second place that uses the result can take ``twin`` of it.
    """
    fits = other.shape == y.shape and other.dtype == y.dtype and other.is_contiguous(memory_format=torch.channels_last)
    if not (fits and can_fuse(y, norm) and (other_norm is None or can_fuse(other, other_norm))):
        return functional.relu(norm(y) + (other if other_norm is None else other_norm(other)))
    others = (None,) * 3 if other_norm is None else (other_norm.weight, other_norm.bias, _statistics(other, other_norm))
    out, second = NormAddReLU.apply(y, norm.weight, norm.bias, _statistics(y, norm), other, *others)
    out._ddpbench_twin = second
    result: Tensor = out
    return result


def twin(tensor: Tensor) -> Tensor:
    """The same tensor with a gradient of its own, if ``norm_add_relu`` has made it: its kernel adds both. Else ``tensor`` itself."""
    second: Tensor = getattr(tensor, "_ddpbench_twin", tensor)
    return second


def norm_relu_pool(y: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """``relu(norm(y))`` in a max-pool of 3x3 with stride 2 and padding 1, for ``y`` (N, C, H, W)."""
    if y.shape[2] % 2 or y.shape[3] % 2 or not can_fuse(y, norm):
        return functional.max_pool2d(norm_relu(y, norm), 3, 2, 1)
    out: Tensor = NormReLUPool.apply(y, norm.weight, norm.bias, _statistics(y, norm))
    return out


def _statistics(y: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Statistics of the batch. The running ones are updated."""
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert all(each is not None for each in running), "can_fuse has looked"
    stats: Tensor = batch_statistics(y.detach(), *running, norm.momentum, norm.eps)
    return stats


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
