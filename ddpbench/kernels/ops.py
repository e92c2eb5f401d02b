"""The kernels of BatchNorm with addition and ReLU as operators of torch: on tensors, without autograd.

Feature maps are (N, C, H, W) in channels-last order; parameters and statistics have C elements. Triton launches on the current device,
which is therefore made that of the tensors.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ddpbench.kernels import backward, forward
from ddpbench.kernels.registration import fake_of, operator
from ddpbench.kernels.tiles import MAP_WARPS, SUM_WARPS, TILES_PER_PROGRAM, Tiles

BLOCK_PROGRAMS, BLOCK_CHANNELS = 32, 32
"""The tile of a kernel that merges the sums of programs."""


@operator(mutates_args=("running_mean", "running_var", "num_batches"))
def batch_statistics(y: Tensor, running_mean: Tensor, running_var: Tensor, num_batches: Tensor, momentum: float, eps: float) -> Tensor:
    """Mean and 1 / sqrt(variance + eps) of each channel of ``y`` as float32 (2, C). Updates the running statistics as BatchNorm does."""
    tiles = Tiles.of(y)
    grid = tiles.sum_grid(y.device)
    partial = torch.empty(3, grid[0], tiles.channels, dtype=torch.float32, device=y.device)
    counts = torch.empty(grid[0], dtype=torch.int32, device=y.device)
    stats = torch.empty(2, tiles.channels, dtype=torch.float32, device=y.device)
    with torch.cuda.device_of(y):
        forward.statistics_kernel[grid](
            y, partial, counts, tiles.rows, tiles.channels, tiles.down,
            STAGES=tiles.stages(y, 1), BLOCK_ROWS=tiles.block_rows, BLOCK_CHANNELS=tiles.block_channels, num_warps=SUM_WARPS,
        )  # fmt: skip
        forward.merge_statistics_kernel[(triton.cdiv(tiles.channels, BLOCK_CHANNELS),)](
            partial, counts, stats, running_mean, running_var, num_batches, tiles.rows, tiles.channels, grid[0],
            MOMENTUM=momentum, EPS=eps, BLOCK_PROGRAMS=BLOCK_PROGRAMS, BLOCK_CHANNELS=BLOCK_CHANNELS, num_warps=MAP_WARPS,
        )  # fmt: skip
    return stats


@fake_of(batch_statistics)
def _(y: Tensor, running_mean: Tensor, running_var: Tensor, num_batches: Tensor, momentum: float, eps: float) -> Tensor:
    return y.new_empty(2, y.shape[1], dtype=torch.float32)


@operator()
def batch_norm_relu(
    y: Tensor,
    stats: Tensor,
    weight: Tensor,
    bias: Tensor,
    other: Tensor | None,
    other_stats: Tensor | None,
    other_weight: Tensor | None,
    other_bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """relu(bn(y)), relu(bn(y) + other), or relu(bn(y) + bn(other)) if ``other_stats`` is given.

    Returns it, and with ``other`` a bit per element that says whether its ReLU is open, as (N * H * W, ceil(C / 8)) bytes.
    """
    tiles, out = Tiles.of(y), torch.empty_like(y)
    positive = _positive_bits(y, other)
    with torch.cuda.device_of(y):
        forward.normalize_kernel[tiles.map_grid](
            y, stats, weight, bias, other, other_stats, other_weight, other_bias, out, positive, tiles.rows, tiles.channels,
            ADDS=other is not None, NORMALIZES_OTHER=other_stats is not None, TILES=TILES_PER_PROGRAM,
            STAGES=tiles.stages(y, 1 + (other is not None)),
            BLOCK_ROWS=tiles.block_rows, BLOCK_CHANNELS=tiles.block_channels, num_warps=MAP_WARPS,
        )  # fmt: skip
    return out, positive


@fake_of(batch_norm_relu)
def _(y: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, *_: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(y), _positive_bits(y, other)


def _positive_bits(y: Tensor, other: Tensor | None) -> Tensor:
    shape = (0,) if other is None else (y.numel() // y.shape[1], (y.shape[1] + 7) // 8)
    return y.new_empty(shape, dtype=torch.uint8)


@operator()
def batch_norm_relu_backward(
    grad: Tensor,
    second_grad: Tensor | None,
    y: Tensor,
    stats: Tensor,
    weight: Tensor,
    bias: Tensor,
    positive: Tensor,
    other: Tensor | None,
    other_stats: Tensor | None,
    other_weight: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``batch_norm_relu``, whose output has the gradient ``grad``, or the sum of it and ``second_grad``.

    ``positive`` is empty if nothing was added, and ``other`` is only needed if it was normalized. Returns the gradient of ``y``, that of
    ``other`` (empty if nothing was added), and those of bias, weight and the weight of ``other`` as float32 (2 or 3, C).
    """
    tiles, adds, normalizes_other = Tiles.of(y), positive.numel() > 0, other_stats is not None
    grid = tiles.sum_grid(y.device)
    y_grad, other_grad, grads = _gradients(y, positive, other_stats)
    masked_grad = grad if not adds else torch.empty_like(y) if normalizes_other else other_grad
    sums = torch.empty(len(grads), grid[0], tiles.channels, dtype=torch.float32, device=y.device)
    with torch.cuda.device_of(y):
        backward.sum_gradients_kernel[grid](
            grad, second_grad, y, stats, weight, bias, positive, other, other_stats, masked_grad, sums,
            tiles.rows, tiles.channels, tiles.down,
            ADDS=adds, NORMALIZES_OTHER=normalizes_other, HAS_SECOND=second_grad is not None,
            STAGES=tiles.stages(y, 2 + (second_grad is not None) + normalizes_other),
            BLOCK_ROWS=tiles.block_rows, BLOCK_CHANNELS=tiles.block_channels, num_warps=SUM_WARPS,
        )  # fmt: skip
        backward.parameter_gradients_kernel[(triton.cdiv(tiles.channels, BLOCK_CHANNELS),)](
            sums, stats, other_stats, grads, tiles.channels, grid[0],
            NORMALIZES_OTHER=normalizes_other, BLOCK_PROGRAMS=BLOCK_PROGRAMS, BLOCK_CHANNELS=BLOCK_CHANNELS, num_warps=MAP_WARPS,
        )  # fmt: skip
        backward.input_gradients_kernel[tiles.map_grid](
            masked_grad, y, stats, weight, bias, other, other_stats, other_weight, grads, y_grad, other_grad, tiles.rows, tiles.channels,
            ADDS=adds, NORMALIZES_OTHER=normalizes_other, TILES=TILES_PER_PROGRAM,
            STAGES=tiles.stages(y, 2 + normalizes_other),
            BLOCK_ROWS=tiles.block_rows, BLOCK_CHANNELS=tiles.block_channels, num_warps=MAP_WARPS,
        )  # fmt: skip
    return y_grad, other_grad, grads


@fake_of(batch_norm_relu_backward)
def _(grad: Tensor, second_grad: Tensor | None, y: Tensor, *parameters: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    _, _, _, positive, _, other_stats, _ = parameters
    assert positive is not None, "it may be empty"
    return _gradients(y, positive, other_stats)


def _gradients(y: Tensor, positive: Tensor, other_stats: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the results of ``batch_norm_relu_backward``."""
    other_grad = torch.empty_like(y) if positive.numel() else y.new_empty(0)
    return torch.empty_like(y), other_grad, y.new_empty(2 if other_stats is None else 3, y.shape[1], dtype=torch.float32)
