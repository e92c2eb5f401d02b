"""Triton kernels of an update by SGD. Programs find their tensors in a table, so that one launch updates them all.

A row of ``tensors`` has the addresses of weight, gradient and momentum, and the number of elements. A row of ``blocks``, one per program,
has the number of a row of ``tensors``, and of the first element of a block. Addresses of gradients are multiples of 4 bytes, as views of
DDP's buckets have, those of the others of 16.
"""

from __future__ import annotations

import triton
import triton.language as tl

COLUMNS: tl.constexpr = tl.constexpr(4)


@triton.jit
def copy_kernel(tensors, target, size, BLOCK: tl.constexpr):
    """Copy a table."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offset, tl.load(tensors + offset, mask=offset < size), mask=offset < size)


@triton.jit
def block_of(tensors, blocks, BLOCK: tl.constexpr):
    """The row of this program's tensors, the number of its first element, and the number of elements of the tensors."""
    place = blocks + 2 * tl.program_id(0)
    row = tensors + COLUMNS * tl.load(place)
    return row, tl.multiple_of(tl.load(place + 1), BLOCK), tl.load(row + COLUMNS - 1)


@triton.jit
def elements(row, column, offset, ALIGNMENT: tl.constexpr):
    """Pointers to elements of the tensor whose address is in ``column``; the address is a multiple of ``ALIGNMENT`` bytes."""
    return tl.multiple_of(tl.load(row + column).to(tl.pointer_type(tl.float32)) + offset, ALIGNMENT)


@triton.jit
def check_block(row, offset, inside, found_inf):
    gradient = tl.load(elements(row, 1, offset, 4), mask=inside)
    is_infinite = (tl.abs(gradient) < float("inf")) == 0  # or NaN
    if inside is not None:
        is_infinite &= inside
    if tl.max(is_infinite.to(tl.int32), 0) != 0:
        tl.store(found_inf, 1.0)


@triton.jit
def check_kernel(tensors, blocks, found_inf, BLOCK: tl.constexpr):
    """Store 1 in ``found_inf`` if any gradient is infinite or NaN."""
    row, first, size = block_of(tensors, blocks, BLOCK)
    offset = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        check_block(row, offset, None, found_inf)
    else:
        check_block(row, offset, offset < size, found_inf)


@triton.jit
def update_block(
    row, offset, inside, lr, weight_decay, momentum, grad_scale, HAS_MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr
):  # fmt: skip
    weights = elements(row, 0, offset, 16)
    weight = tl.load(weights, mask=inside)
    step = tl.load(elements(row, 1, offset, 4), mask=inside)
    if grad_scale is not None:
        step = step * (1.0 / tl.load(grad_scale))
    step += weight_decay * weight
    if HAS_MOMENTUM:
        velocities = elements(row, 2, offset, 16)
        velocity = momentum * tl.load(velocities, mask=inside) + step
        tl.store(velocities, velocity, mask=inside)
        step = step + momentum * velocity if NESTEROV else velocity
    tl.store(weights, weight - lr * step, mask=inside)


@triton.jit
def update_kernel(
    tensors, blocks, lr, weight_decay, momentum, grad_scale, found_inf,
    HAS_MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update weights and momenta with gradients that are divided by ``grad_scale``, unless ``found_inf`` is not 0."""
    if found_inf is not None:  # noqa: SIM102 - decided when the kernel is compiled
        if tl.load(found_inf) != 0.0:
            return
    row, first, size = block_of(tensors, blocks, BLOCK)
    offset = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        update_block(row, offset, None, lr, weight_decay, momentum, grad_scale, HAS_MOMENTUM, NESTEROV)
    else:
        update_block(row, offset, offset < size, lr, weight_decay, momentum, grad_scale, HAS_MOMENTUM, NESTEROV)
