"""Triton kernels of BatchNorm, ReLU and a max-pool of 3x3 with stride 2 and padding 1 in one: the stem of a ResNet.

The backward pass works on cells of 2x2 pixels. Cell (i, j) has the pixels (2i, 2j) to (2i + 1, 2j + 1), which only the windows of the cells
(i, j), (i, j + 1), (i + 1, j) and (i + 1, j + 1) contain. So every pixel is read once, and its gradient is gathered without atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ddpbench.kernels.backward import gradient_parameters
from ddpbench.kernels.forward import as_row, mean_and_factor, total_of

CLOSED: tl.constexpr = tl.constexpr(9)
"""The position, in a window whose positions are 0 to 8, of a maximum that the ReLU does not let through."""


@triton.jit
def pool_kernel(
    y, stats, weight, bias, out, position, cells, channels, height, width, BLOCK_CELLS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr
):  # fmt: skip
    """max-pool(relu(bn(y))) and the position of each maximum in its window; ``height`` and ``width`` are those of the output.

    As in torch, the first of equal values is the maximum, and the last NaN. Values are compared as rounded to the dtype of the output.
    """
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    cell = tl.program_id(0) * BLOCK_CELLS + tl.arange(0, BLOCK_CELLS)
    column, line = cell % width, (cell // width) % height
    first_line = (cell // (width * height)).to(tl.int64) * (2 * height)  # of the image, among the lines of all
    is_channel = (channel < channels)[None, :]
    mean, factor = mean_and_factor(stats, weight, channel, channels)
    shift = as_row(bias, channel, channels)
    best = tl.full([BLOCK_CELLS, BLOCK_CHANNELS], float("-inf"), tl.float32)
    found = tl.zeros([BLOCK_CELLS, BLOCK_CHANNELS], tl.int32)
    for k in tl.static_range(9):
        h, w = 2 * line - 1 + k // 3, 2 * column - 1 + k % 3
        inside = ((cell < cells) & (h >= 0) & (w >= 0))[:, None] & is_channel  # height and width are even: no window ends outside
        pixel = ((first_line + h) * (2 * width) + w)[:, None] * channels + channel[None, :]
        value = (tl.load(y + pixel, mask=inside, other=0.0).to(tl.float32) - mean) * factor + shift
        value = value.to(out.dtype.element_ty).to(tl.float32)
        is_better = inside & ((value > best) | (value != value))
        best, found = tl.where(is_better, value, best), tl.where(is_better, k, found)
    offset = cell.to(tl.int64)[:, None] * channels + channel[None, :]
    is_cell = (cell < cells)[:, None] & is_channel
    tl.store(out + offset, tl.where(best <= 0.0, 0.0, best).to(out.dtype.element_ty), mask=is_cell)
    tl.store(position + offset, tl.where(best <= 0.0, CLOSED, found).to(tl.int8), mask=is_cell)


@triton.jit
def cell_gradients(grad, position, cell, cells, channel, channels, height, width):
    """The gradients before the ReLU of the four pixels of each cell: upper left, upper right, lower left, lower right."""
    column, line = cell % width, (cell // width) % height
    here = (cell < cells)[:, None] & (channel < channels)[None, :]
    right, below = here & (column + 1 < width)[:, None], here & (line + 1 < height)[:, None]
    both = right & below
    offset = cell.to(tl.int64)[:, None] * channels + channel[None, :]
    down = width * channels
    p0 = tl.load(position + offset, mask=here, other=CLOSED)
    p1 = tl.load(position + offset + channels, mask=right, other=CLOSED)
    p2 = tl.load(position + offset + down, mask=below, other=CLOSED)
    p3 = tl.load(position + offset + down + channels, mask=both, other=CLOSED)
    g0 = tl.load(grad + offset, mask=here, other=0.0).to(tl.float32)
    g1 = tl.load(grad + offset + channels, mask=right, other=0.0).to(tl.float32)
    g2 = tl.load(grad + offset + down, mask=below, other=0.0).to(tl.float32)
    g3 = tl.load(grad + offset + down + channels, mask=both, other=0.0).to(tl.float32)
    upper_left = tl.where(p0 == 4, g0, 0.0)
    upper_right = tl.where(p0 == 5, g0, 0.0) + tl.where(p1 == 3, g1, 0.0)
    lower_left = tl.where(p0 == 7, g0, 0.0) + tl.where(p2 == 1, g2, 0.0)
    lower_right = tl.where(p0 == 8, g0, 0.0) + tl.where(p1 == 6, g1, 0.0) + tl.where(p2 == 2, g2, 0.0) + tl.where(p3 == 0, g3, 0.0)
    return upper_left, upper_right, lower_left, lower_right


@triton.jit
def cell_pixels(cell, channel, channels, height, width):
    """The offset of the upper left pixel of each cell."""
    column, line = cell % width, (cell // width) % height
    image = (cell // (width * height)).to(tl.int64)
    return ((image * height + line) * 4 * width + 2 * column)[:, None] * channels + channel[None, :]


@triton.jit
def sum_pool_gradients_kernel(
    grad, position, y, stats, sums, cells, channels, tiles, height, width, BLOCK_CELLS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr
):  # fmt: skip
    """Sums of the gradient g before the ReLU over the cells of each program: of g, and of g (y - mean)."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    is_channel = channel < channels
    mean = as_row(stats, channel, channels)
    sum_g = tl.zeros([BLOCK_CELLS, BLOCK_CHANNELS], tl.float32)
    sum_gy = tl.zeros([BLOCK_CELLS, BLOCK_CHANNELS], tl.float32)
    for i in range(program, tiles, programs):
        cell = i * BLOCK_CELLS + tl.arange(0, BLOCK_CELLS)
        inside = (cell < cells)[:, None] & is_channel[None, :]
        a, b, c, d = cell_gradients(grad, position, cell, cells, channel, channels, height, width)
        pixel, down = cell_pixels(cell, channel, channels, height, width), 2 * width * channels
        y_a = tl.load(y + pixel, mask=inside, other=0.0).to(tl.float32) - mean
        y_b = tl.load(y + pixel + channels, mask=inside, other=0.0).to(tl.float32) - mean
        y_c = tl.load(y + pixel + down, mask=inside, other=0.0).to(tl.float32) - mean
        y_d = tl.load(y + pixel + down + channels, mask=inside, other=0.0).to(tl.float32) - mean
        sum_g += (a + b) + (c + d)
        sum_gy += tl.where(inside, (a * y_a + b * y_b) + (c * y_c + d * y_d), 0.0)
    out = program * channels + channel
    tl.store(sums + out, total_of(sum_g), mask=is_channel)
    tl.store(sums + programs * channels + out, total_of(sum_gy), mask=is_channel)


@triton.jit
def pool_input_gradients_kernel(
    grad, position, y, stats, weight, grads, y_grad, cells, channels, height, width,
    BLOCK_CELLS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradient of ``y``."""
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    cell = tl.program_id(0) * BLOCK_CELLS + tl.arange(0, BLOCK_CELLS)
    inside = (cell < cells)[:, None] & (channel < channels)[None, :]
    gradients = cell_gradients(grad, position, cell, cells, channel, channels, height, width)
    mean, factor = mean_and_factor(stats, weight, channel, channels)
    offset, slope = gradient_parameters(stats, grads, grads + channels, channel, channels, 4 * cells)
    first = cell_pixels(cell, channel, channels, height, width)
    for k in tl.static_range(4):
        pixel = first + (k // 2) * 2 * width * channels + (k % 2) * channels
        value = tl.load(y + pixel, mask=inside, other=0.0).to(tl.float32) - mean
        result = (gradients[k] - offset - value * slope) * factor
        tl.store(y_grad + pixel, result.to(y_grad.dtype.element_ty), mask=inside)
