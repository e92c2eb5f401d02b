"""The kernels of BatchNorm, ReLU and max-pool as operators of torch: on tensors, without autograd."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ddpbench.kernels import backward, pool
from ddpbench.kernels.ops import BLOCK_CHANNELS, BLOCK_PROGRAMS
from ddpbench.kernels.registration import fake_of, operator
from ddpbench.kernels.tiles import MAP_WARPS, Tiles, multiprocessors

BLOCK_CELLS, NUM_WARPS = 16, 4
"""Cells of a tile: few, since four pixels of each cell and what surrounds them stay in registers."""

WAVES = 4


@operator()
def batch_norm_relu_pool(y: Tensor, stats: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """max-pool(relu(bn(y))) of 3x3 with stride 2 and padding 1, for ``y`` (N, C, 2 H, 2 W); and the positions of the maxima as int8."""
    out, position = _pooled(y)
    tiles = _cells(out)
    with torch.cuda.device_of(y):
        pool.pool_kernel[(tiles.down, tiles.across)](
            y, stats, weight, bias, out, position, tiles.rows, tiles.channels, *out.shape[2:],
            BLOCK_CELLS=tiles.block_rows, BLOCK_CHANNELS=tiles.block_channels, num_warps=NUM_WARPS,
        )  # fmt: skip
    return out, position


@fake_of(batch_norm_relu_pool)
def _(y: Tensor, stats: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return _pooled(y)


def _pooled(y: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the results of ``batch_norm_relu_pool``."""
    shape = (y.shape[0], y.shape[1], y.shape[2] // 2, y.shape[3] // 2)
    out = torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
    return out, torch.empty_like(out, dtype=torch.int8)


@operator()
def batch_norm_relu_pool_backward(grad: Tensor, position: Tensor, y: Tensor, stats: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of ``y``, and those of bias and weight as float32 (2, C)."""
    tiles, y_grad = _cells(position), torch.empty_like(y)
    programs = min(tiles.down, WAVES * multiprocessors(y.device))
    sums = torch.empty(2, programs, tiles.channels, dtype=torch.float32, device=y.device)
    grads = torch.empty(2, tiles.channels, dtype=torch.float32, device=y.device)
    size = position.shape[2:]
    with torch.cuda.device_of(y):
        pool.sum_pool_gradients_kernel[(programs, tiles.across)](
            grad, position, y, stats, sums, tiles.rows, tiles.channels, tiles.down, *size,
            BLOCK_CELLS=tiles.block_rows, BLOCK_CHANNELS=tiles.block_channels, num_warps=NUM_WARPS,
        )  # fmt: skip
        backward.parameter_gradients_kernel[(triton.cdiv(tiles.channels, BLOCK_CHANNELS),)](
            sums, stats, None, grads, tiles.channels, programs,
            NORMALIZES_OTHER=False, BLOCK_PROGRAMS=BLOCK_PROGRAMS, BLOCK_CHANNELS=BLOCK_CHANNELS, num_warps=MAP_WARPS,
        )  # fmt: skip
        pool.pool_input_gradients_kernel[(tiles.down, tiles.across)](
            grad, position, y, stats, weight, grads, y_grad, tiles.rows, tiles.channels, *size,
            BLOCK_CELLS=tiles.block_rows, BLOCK_CHANNELS=tiles.block_channels, num_warps=NUM_WARPS,
        )  # fmt: skip
    return y_grad, grads


@fake_of(batch_norm_relu_pool_backward)
def _(grad: Tensor, position: Tensor, y: Tensor, stats: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(y), y.new_empty(2, y.shape[1], dtype=torch.float32)


def _cells(pooled: Tensor) -> Tiles:
    """The tiles of cells and channels of a pooled tensor."""
    channels = pooled.shape[1]
    block_channels = min(64, max(16, triton.next_power_of_2(channels)))
    return Tiles(pooled.numel() // channels, channels, BLOCK_CELLS, block_channels)
