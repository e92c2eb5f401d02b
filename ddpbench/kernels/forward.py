"""Triton kernels of the forward pass: statistics of a batch, and BatchNorm with addition and ReLU in one pass over the elements.

All tensors are NHWC: a matrix of pixels by channels. Sums are in float32 and in a fixed order. A NaN stays a NaN: ``v > 0`` would drop it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def total_of(tile):
    """The sum of each column of a tile, rounded once."""
    return tl.sum(tile.to(tl.float64), 0).to(tl.float32)


@triton.jit
def statistics_kernel(
    y, partial, counts, rows, channels, tiles, STAGES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr
):  # fmt: skip
    """Of each channel, over the tiles of each program: a shift, the sum of differences from it, and the sum of their squares.

    The shift is the mean of a whole tile, so a mean of many standard deviations does no harm. The last tiles come first: the convolution
    before has just written them, and the cache may still hold them.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    is_channel = channel < channels
    row = tl.arange(0, BLOCK_ROWS)
    offset = row[:, None] * channels + channel[None, :]
    first_row = tl.cast(tl.maximum(tiles - 1 - tl.maximum(program, 1), 0), tl.int64) * BLOCK_ROWS  # the last tile may not be whole
    inside = (first_row + row < rows)[:, None] & is_channel[None, :]
    tile = tl.load(y + first_row * channels + offset, mask=inside, other=0.0).to(tl.float32)
    shift = total_of(tile) / tl.minimum(rows - first_row, BLOCK_ROWS).to(tl.float32)
    first = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    second = tl.zeros([BLOCK_ROWS, BLOCK_CHANNELS], tl.float32)
    count = 0
    for i in tl.range(program, tiles, programs, num_stages=STAGES):
        first_row = tl.cast(tiles - 1 - i, tl.int64) * BLOCK_ROWS
        inside = (first_row + row < rows)[:, None] & is_channel[None, :]
        value = tl.load(y + first_row * channels + offset, mask=inside, other=0.0).to(tl.float32)
        difference = tl.where(inside, value - shift[None, :], 0.0)
        first += difference
        second += difference * difference
        count += tl.minimum(rows - first_row, BLOCK_ROWS).to(tl.int32)
    out, stride = program * channels + channel, programs * channels
    tl.store(partial + out, shift, mask=is_channel)
    tl.store(partial + stride + out, total_of(first), mask=is_channel)
    tl.store(partial + 2 * stride + out, total_of(second), mask=is_channel)
    tl.store(counts + program, count)  # the same from every column


@triton.jit
def merge_statistics_kernel(
    partial, counts, stats, running_mean, running_var, batches, rows, channels, programs,
    MOMENTUM: tl.constexpr, EPS: tl.constexpr, BLOCK_PROGRAMS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Merge the statistics of all programs into ``stats``: mean and 1 / sqrt(variance + eps). Update the running ones.

    In float64, since every element depends on these few numbers. An argument would be a float32, so momentum and eps are constants.
    """
    channel = tl.program_id(0) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    is_channel = channel < channels
    stride = programs * channels
    base = tl.load(partial + channel, mask=is_channel, other=0.0).to(tl.float64)
    first = tl.zeros([BLOCK_PROGRAMS, BLOCK_CHANNELS], tl.float64)
    second = tl.zeros([BLOCK_PROGRAMS, BLOCK_CHANNELS], tl.float64)
    for start in range(0, programs, BLOCK_PROGRAMS):
        program = start + tl.arange(0, BLOCK_PROGRAMS)
        inside = (program < programs)[:, None] & is_channel[None, :]
        place = partial + program[:, None] * channels + channel[None, :]
        count = tl.load(counts + program, mask=program < programs, other=0).to(tl.float64)[:, None]
        shift = tl.where(inside, tl.load(place, mask=inside, other=0.0).to(tl.float64) - base[None, :], 0.0)
        total = tl.load(place + stride, mask=inside, other=0.0).to(tl.float64)
        squares = tl.load(place + 2 * stride, mask=inside, other=0.0).to(tl.float64)
        first += total + count * shift
        second += squares + shift * (2.0 * total + count * shift)
    difference = tl.sum(first, 0) / rows
    mean = base + difference
    variance = tl.sum(second, 0) / rows - difference * difference
    variance = tl.where(variance < 0.0, 0.0, variance)
    tl.store(stats + channel, mean, mask=is_channel)
    tl.store(stats + channels + channel, 1.0 / tl.sqrt(variance + EPS), mask=is_channel)
    old_mean = tl.load(running_mean + channel, mask=is_channel).to(tl.float64)
    old_var = tl.load(running_var + channel, mask=is_channel).to(tl.float64)
    new_mean = old_mean + MOMENTUM * (mean - old_mean)
    new_var = old_var + MOMENTUM * (variance * rows / (rows - 1) - old_var)
    tl.store(running_mean + channel, new_mean.to(running_mean.dtype.element_ty), mask=is_channel)
    tl.store(running_var + channel, new_var.to(running_var.dtype.element_ty), mask=is_channel)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def as_row(values, channel, channels):
    """Values of the channels of a tile, as a row in float32."""
    return tl.load(values + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]


@triton.jit
def mean_and_factor(stats, weight, channel, channels):
    """Of a BatchNorm, as rows: it is (y - mean) * factor + bias.

    The mean is subtracted first, as a factor and a summand alone would cancel where it is large.
    """
    return as_row(stats, channel, channels), as_row(stats + channels, channel, channels) * as_row(weight, channel, channels)


@triton.jit
def places_of_bits(positive, first_row, row, is_row, channels, BLOCK_CHANNELS: tl.constexpr):
    """Where the bits of a tile are, eight channels to a byte, and which of these bytes exist."""
    row_bytes = (channels + 7) // 8
    byte = tl.program_id(1) * (BLOCK_CHANNELS // 8) + tl.arange(0, BLOCK_CHANNELS // 8)
    places = positive + first_row * row_bytes + row[:, None] * row_bytes + byte[None, :]
    return places, is_row[:, None] & (byte < row_bytes)[None, :]


@triton.jit
def normalize_kernel(
    y, stats, weight, bias, other, other_stats, other_weight, other_bias, out, positive, rows, channels,
    ADDS: tl.constexpr, NORMALIZES_OTHER: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """relu(bn(y)), relu(bn(y) + other) or relu(bn(y) + bn(other)); where it adds, a bit per element says whether the ReLU is open."""
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    row = tl.arange(0, BLOCK_ROWS)
    offset = row[:, None] * channels + channel[None, :]
    mean, factor = mean_and_factor(stats, weight, channel, channels)
    shift = as_row(bias, channel, channels)
    if NORMALIZES_OTHER:
        other_mean, other_factor = mean_and_factor(other_stats, other_weight, channel, channels)
        other_shift = as_row(other_bias, channel, channels)
    for i in tl.range(TILES, num_stages=STAGES):
        first_row = (tl.program_id(0).to(tl.int64) * TILES + i) * BLOCK_ROWS
        is_row = first_row + row < rows
        inside = is_row[:, None] & (channel < channels)[None, :]
        start = first_row * channels
        value = tl.load(y + start + offset, mask=inside, other=0.0).to(tl.float32)
        value = (value - mean) * factor + shift
        if ADDS:
            added = tl.load(other + start + offset, mask=inside, other=0.0).to(tl.float32)
            if NORMALIZES_OTHER:
                added = (added - other_mean) * other_factor + other_shift
            value += added
            bits = tl.reshape((~(value <= 0.0)).to(tl.int32), [BLOCK_ROWS, BLOCK_CHANNELS // 8, 8]) << tl.arange(0, 8)[None, None, :]
            places, exist = places_of_bits(positive, first_row, row, is_row, channels, BLOCK_CHANNELS)
            tl.store(places, tl.sum(bits, 2).to(tl.uint8), mask=exist)
        value = tl.where(value <= 0.0, 0.0, value)
        tl.store(out + start + offset, value.to(out.dtype.element_ty), mask=inside)
