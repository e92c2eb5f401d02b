"""Triton kernels of the backward pass of BatchNorm with addition and ReLU. Tensors and sums are as in the forward pass."""

from __future__ import annotations

import triton
import triton.language as tl

from ddpbench.kernels.forward import as_row, mean_and_factor, places_of_bits, total_of


@triton.jit
def unpacked(positive, first_row, row, is_row, channels, BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    """Whether the ReLU is open, for each element of a tile, from the bits that the forward pass has written."""
    places, exist = places_of_bits(positive, first_row, row, is_row, channels, BLOCK_CHANNELS)
    packed = tl.load(places, mask=exist, other=0).to(tl.int32)
    bits = (packed[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.reshape(bits, [BLOCK_ROWS, BLOCK_CHANNELS]) != 0


@triton.jit
def sum_gradients_kernel(
    grad, second_grad, y, stats, weight, bias, positive, other, other_stats, masked_grad, sums, rows, channels, tiles,
    ADDS: tl.constexpr, NORMALIZES_OTHER: tl.constexpr, HAS_SECOND: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient g before the ReLU over the tiles of each program: of g, of g (y - mean), and of g (other - mean).

    Where the forward pass adds, both gradients of the output are added here, and g is written: it is also that of ``other``.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    is_channel = channel < channels
    row = tl.arange(0, BLOCK_ROWS)
    offset = row[:, None] * channels + channel[None, :]
    mean, factor = mean_and_factor(stats, weight, channel, channels)
    shift = as_row(bias, channel, channels)
    if NORMALIZES_OTHER:
        other_mean = as_row(other_stats, channel, channels)
    sum_g = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    sum_gy = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    sum_go = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    for i in tl.range(program, tiles, programs, num_stages=STAGES):
        first_row = tl.cast(tiles - 1 - i, tl.int64) * BLOCK_ROWS
        is_row = first_row + row < rows
        inside = is_row[:, None] & is_channel[None, :]
        start = first_row * channels
        g = tl.load(grad + start + offset, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(y + start + offset, mask=inside, other=0.0).to(tl.float32)
        if ADDS:
            if HAS_SECOND:
                g += tl.load(second_grad + start + offset, mask=inside, other=0.0).to(tl.float32)
            g = tl.where(unpacked(positive, first_row, row, is_row, channels, BLOCK_ROWS, BLOCK_CHANNELS), g, 0.0)
            g = g.to(masked_grad.dtype.element_ty)
            tl.store(masked_grad + start + offset, g, mask=inside)
            g = g.to(tl.float32)
        else:
            g = tl.where((value - mean) * factor + shift <= 0.0, 0.0, g)
        sum_g += g
        sum_gy += tl.where(inside, g * (value - mean), 0.0)
        if NORMALIZES_OTHER:
            added = tl.load(other + start + offset, mask=inside, other=0.0).to(tl.float32)
            sum_go += tl.where(inside, g * (added - other_mean), 0.0)
    out, stride = program * channels + channel, programs * channels
    tl.store(sums + out, total_of(sum_g), mask=is_channel)
    tl.store(sums + stride + out, total_of(sum_gy), mask=is_channel)
    if NORMALIZES_OTHER:
        tl.store(sums + 2 * stride + out, total_of(sum_go), mask=is_channel)


@triton.jit
def summed(sums, channel, is_channel, channels, programs, BLOCK_PROGRAMS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    """The sum of the sums of all programs, in float64."""
    total = tl.zeros([BLOCK_PROGRAMS, BLOCK_CHANNELS], tl.float64)
    for start in range(0, programs, BLOCK_PROGRAMS):
        program = start + tl.arange(0, BLOCK_PROGRAMS)
        inside = (program < programs)[:, None] & is_channel[None, :]
        total += tl.load(sums + program[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def parameter_gradients_kernel(
    sums, stats, other_stats, grads, channels, programs,
    NORMALIZES_OTHER: tl.constexpr, BLOCK_PROGRAMS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradients of bias, weight, and the weight of ``other``, whose bias has the gradient of the first: rows of ``grads``."""
    channel = tl.program_id(0) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    is_channel = channel < channels
    stride = programs * channels
    rstd = tl.load(stats + channels + channel, mask=is_channel, other=0.0)
    bias_grad = summed(sums, channel, is_channel, channels, programs, BLOCK_PROGRAMS, BLOCK_CHANNELS)
    weight_grad = rstd * summed(sums + stride, channel, is_channel, channels, programs, BLOCK_PROGRAMS, BLOCK_CHANNELS)
    tl.store(grads + channel, bias_grad, mask=is_channel)
    tl.store(grads + channels + channel, weight_grad, mask=is_channel)
    if NORMALIZES_OTHER:
        other_rstd = tl.load(other_stats + channels + channel, mask=is_channel, other=0.0)
        other_grad = other_rstd * summed(sums + 2 * stride, channel, is_channel, channels, programs, BLOCK_PROGRAMS, BLOCK_CHANNELS)
        tl.store(grads + 2 * channels + channel, other_grad, mask=is_channel)


@triton.jit
def gradient_parameters(stats, bias_grads, weight_grads, channel, channels, rows):
    """Offset and slope of the gradient of what a BatchNorm normalizes, as rows: it is (g - offset - (y - mean) * slope) * factor."""
    offset = as_row(bias_grads, channel, channels) / rows
    slope = as_row(stats + channels, channel, channels) * as_row(weight_grads, channel, channels) / rows
    return offset, slope


@triton.jit
def input_gradients_kernel(
    grad, y, stats, weight, bias, other, other_stats, other_weight, grads, y_grad, other_grad, rows, channels,
    ADDS: tl.constexpr, NORMALIZES_OTHER: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradients of ``y``, and of a normalized ``other``. ``grad`` is that before the ReLU if the forward pass adds, else after it."""
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    row = tl.arange(0, BLOCK_ROWS)
    pixel = row[:, None] * channels + channel[None, :]
    mean, factor = mean_and_factor(stats, weight, channel, channels)
    shift = as_row(bias, channel, channels)
    offset, slope = gradient_parameters(stats, grads, grads + channels, channel, channels, rows)
    if NORMALIZES_OTHER:
        other_mean, other_factor = mean_and_factor(other_stats, other_weight, channel, channels)
        other_offset, other_slope = gradient_parameters(other_stats, grads, grads + 2 * channels, channel, channels, rows)
    for i in tl.range(TILES, num_stages=STAGES):
        first_row = (tl.program_id(0).to(tl.int64) * TILES + i) * BLOCK_ROWS
        inside = (first_row + row < rows)[:, None] & (channel < channels)[None, :]
        here = first_row * channels + pixel
        g = tl.load(grad + here, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(y + here, mask=inside, other=0.0).to(tl.float32) - mean
        if not ADDS:
            g = tl.where(value * factor + shift <= 0.0, 0.0, g)
        result = (g - offset - value * slope) * factor
        tl.store(y_grad + here, result.to(y_grad.dtype.element_ty), mask=inside)
        if NORMALIZES_OTHER:
            added = tl.load(other + here, mask=inside, other=0.0).to(tl.float32) - other_mean
            result = (g - other_offset - added * other_slope) * other_factor
            tl.store(other_grad + here, result.to(other_grad.dtype.element_ty), mask=inside)
