"""The convolution of images with three channels as one over blocks of pixels: space to depth.

cuDNN's kernels for half precision take a multiple of eight channels. Of three, they pad the images in every pass, and in bfloat16 most of
their time goes into zeros. Blocks of eight pixels by one stride have 24 channels or more. An output pixel of the blocks holds several
neighbouring ones of the convolution, which in channels-last order is the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from ddpbench.kernels.deferred import materialized
from ddpbench.kernels.functions import DTYPES
from ddpbench.kernels.registration import fake_of, operator
from ddpbench.kernels.tiles import is_interpreted
from ddpbench.machine.backends import get_tf32

CHANNELS, BLOCK_WIDTH = 3, 8
TILE, NUM_WARPS = 2048, 4
HALF_DTYPES = (torch.float16, torch.bfloat16)


@triton.jit
def space_to_depth_kernel(
    images, out, height, width, rows, columns, top, left, BLOCK_HEIGHT: tl.constexpr, BLOCK_ROW: tl.constexpr, TILE: tl.constexpr
):
    """Casts one row of blocks. ``BLOCK_ROW``, ``width`` and ``left`` count the elements of pixels in a row, of a block or of the image."""
    row = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * TILE + tl.arange(0, TILE)
    elements = columns * BLOCK_HEIGHT * BLOCK_ROW
    y = (row % rows) * BLOCK_HEIGHT + element // BLOCK_ROW % BLOCK_HEIGHT - top
    x = element // (BLOCK_HEIGHT * BLOCK_ROW) * BLOCK_ROW + element % BLOCK_ROW - left
    inside = (element < elements) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    value = tl.load(images + (row // rows * height + y) * width + x, mask=inside, other=0)
    tl.store(out + row * elements + element, value.to(out.dtype.element_ty), mask=element < elements)


@operator()
def space_to_depth(images: Tensor, dtype: torch.dtype, rows: int, columns: int, block_height: int, top: int, left: int) -> Tensor:
    """``images`` (N, 3, H, W) in channels-last order, as blocks of ``dtype``: (N, block_height * 8 * 3, rows, columns).

    The first block begins ``top`` and ``left`` pixels before the image. There are zeros around the image.
    """
    out = _blocks(images, dtype, rows, columns, block_height, top, left)
    count, _, height, width = images.shape
    block_row = BLOCK_WIDTH * CHANNELS
    grid = (count * rows, triton.cdiv(columns * block_height * block_row, TILE))
    sizes = height, width * CHANNELS, rows, columns, top, left * CHANNELS
    with torch.cuda.device_of(images):
        space_to_depth_kernel[grid](images, out, *sizes, block_height, block_row, TILE, num_warps=NUM_WARPS)
    return out


@fake_of(space_to_depth)
def _blocks(images: Tensor, dtype: torch.dtype, rows: int, columns: int, block_height: int, top: int, left: int) -> Tensor:
    shape = (images.shape[0], block_height * BLOCK_WIDTH * CHANNELS, rows, columns)
    return torch.empty(shape, dtype=dtype, device=images.device, memory_format=torch.channels_last)


@dataclass(frozen=True)
class SpaceToDepthConvolution:
    """A convolution over blocks that has the results of one over pixels."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    kernel_size: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """Neighbouring output pixels of the convolution in one output pixel of the blocks."""
        return BLOCK_WIDTH // self.stride[1]

    @property
    def blocks(self) -> tuple[int, int]:
        """Height and width of the kernel in blocks."""
        return -(-self.kernel_size[0] // self.stride[0]), -(-(self.kernel_size[1] + BLOCK_WIDTH - self.stride[1]) // BLOCK_WIDTH)

    def out_size(self, images: Tensor) -> list[int]:
        """Height and width of the output of the convolution."""
        sides = zip(images.shape[2:], self.padding, self.kernel_size, self.stride, strict=True)
        return [(side + 2 * padding - kernel) // stride + 1 for side, padding, kernel, stride in sides]

    def blocks_of(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        height, width = self.out_size(images)
        rows, columns = height + self.blocks[0] - 1, width // self.outputs + self.blocks[1] - 1
        blocks: Tensor = space_to_depth(images, dtype, rows, columns, self.stride[0], *self.padding)
        return blocks

    def weight_of(self, weight: Tensor) -> Tensor:
        """``weight`` (F, 3, H, W) for blocks: once for each of the outputs, shifted by the stride, with zeros around."""
        filters, (rows, columns), (block_height, step) = weight.shape[0], self.blocks, self.stride
        width = columns * BLOCK_WIDTH
        right, bottom = width - self.kernel_size[1], rows * block_height - self.kernel_size[0]
        shifted = functional.pad(weight, (BLOCK_WIDTH - step, right, 0, bottom)).unfold(3, width, step).flip(3)
        by_block = shifted.reshape(filters, CHANNELS, rows, block_height, self.outputs, columns, BLOCK_WIDTH).permute(4, 0, 2, 5, 3, 6, 1)
        return by_block.reshape(self.outputs * filters, rows, columns, -1).permute(0, 3, 1, 2)

    def __call__(self, images: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The convolution of ``images`` (N, 3, H, W) in ``dtype``, in channels-last order."""
        bias = None if bias is None else bias.repeat(self.outputs)
        out = functional.conv2d(self.blocks_of(images, dtype), self.weight_of(weight), bias)
        return out.permute(0, 2, 3, 1).reshape(*out.shape[::2], -1, len(weight)).permute(0, 3, 1, 2)


class ImageConv2d(nn.Conv2d):
    """A Conv2d of images with three channels, which runs over blocks of pixels on Tensor Cores, unless the images need a gradient."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of ``input`` (N, 3, H, W)."""
        input = materialized(input)
        if torch.compiler.is_compiling() or not (takes_images(self) and self._can_rearrange(input)):
            return super().forward(input)
        assert not isinstance(self.padding, str)  # takes_images
        over_blocks = SpaceToDepthConvolution(self.stride, self.padding, self.kernel_size)
        if over_blocks.out_size(input)[1] % over_blocks.outputs:
            return super().forward(input)
        return over_blocks(input, self.weight, self.bias, _compute_dtype(input))

    def _can_rearrange(self, input: Tensor) -> bool:
        return (
            self.training
            and torch.is_grad_enabled()
            and input.dim() == 4
            and input.shape[1] == CHANNELS
            and input.numel() > 0
            and input.dtype in DTYPES
            and not input.requires_grad
            and (input.is_cuda or is_interpreted())
            and input.is_contiguous(memory_format=torch.channels_last)
            and input.device == self.weight.device
            and (_compute_dtype(input) in HALF_DTYPES or _has_tf32(input.device))
        )


def takes_images(convolution: nn.Conv2d) -> bool:
    """Whether the convolution takes images, and a convolution over blocks has its results."""
    return (
        convolution.in_channels == CHANNELS
        and convolution.groups == 1
        and convolution.dilation == (1, 1)
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
        and BLOCK_WIDTH % convolution.stride[1] == 0
    )


def _compute_dtype(input: Tensor) -> torch.dtype:
    """The dtype in which a convolution of ``input`` runs."""
    kind = input.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype


def _has_tf32(device: torch.device) -> bool:
    """Whether convolutions of float32 run in TF32; in the interpreter, whether they may."""
    _, is_allowed = get_tf32()
    return is_allowed and (device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0))
