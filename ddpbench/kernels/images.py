"""The convolution of images with three channels, as one over larger cells of pixels: space to depth.

cuDNN's kernels for half precision take a multiple of eight channels. Of three, they pad the images in every pass, and in bfloat16 most of
their time goes into zeros. Cells of eight pixels by one stride have 24 channels or more, and an output pixel of the cells holds several
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

CHANNELS, CELL_WIDTH = 3, 8
BLOCK, NUM_WARPS = 2048, 4
HALF_DTYPES = (torch.float16, torch.bfloat16)


@triton.jit
def cells_kernel(
    images, out, HEIGHT, WIDTH, ROWS, COLUMNS, TOP, LEFT, CELL_HEIGHT: tl.constexpr, CELL_ELEMENTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Casts one row of cells. ``CELL_ELEMENTS`` are those of a row of pixels in a cell; ``WIDTH`` and ``LEFT`` count elements, too."""
    row = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    elements = COLUMNS * CELL_HEIGHT * CELL_ELEMENTS
    y = (row % ROWS) * CELL_HEIGHT + element // CELL_ELEMENTS % CELL_HEIGHT - TOP
    x = element // (CELL_HEIGHT * CELL_ELEMENTS) * CELL_ELEMENTS + element % CELL_ELEMENTS - LEFT
    inside = (element < elements) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    value = tl.load(images + (row // ROWS * HEIGHT + y) * WIDTH + x, mask=inside, other=0)
    tl.store(out + row * elements + element, value.to(out.dtype.element_ty), mask=element < elements)


@operator()
def space_to_depth(images: Tensor, dtype: torch.dtype, rows: int, columns: int, cell_height: int, top: int, left: int) -> Tensor:
    """``images`` (N, 3, H, W) in channels-last order, as cells of ``dtype``: (N, cell_height * 8 * 3, rows, columns).

    The first cell begins ``top`` and ``left`` pixels before the image. There are zeros around the image.
    """
    out = _cells(images, dtype, rows, columns, cell_height, top, left)
    count, _, height, width = images.shape
    cell_elements = CELL_WIDTH * CHANNELS
    grid = (count * rows, triton.cdiv(columns * cell_height * cell_elements, BLOCK))
    with torch.cuda.device_of(images):
        cells_kernel[grid](
            images,
            out,
            height,
            width * CHANNELS,
            rows,
            columns,
            top,
            left * CHANNELS,
            cell_height,
            cell_elements,
            BLOCK,
            num_warps=NUM_WARPS,
        )
    return out


@fake_of(space_to_depth)
def _cells(images: Tensor, dtype: torch.dtype, rows: int, columns: int, cell_height: int, top: int, left: int) -> Tensor:
    shape = (images.shape[0], cell_height * CELL_WIDTH * CHANNELS, rows, columns)
    return torch.empty(shape, dtype=dtype, device=images.device, memory_format=torch.channels_last)


@dataclass(frozen=True)
class CellConvolution:
    """A convolution over cells that has the results of one over pixels."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    kernel_size: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """Neighbouring output pixels of the convolution in one of the cells."""
        return CELL_WIDTH // self.stride[1]

    @property
    def cells(self) -> tuple[int, int]:
        """Height and width of the kernel in cells."""
        return -(-self.kernel_size[0] // self.stride[0]), -(-(self.kernel_size[1] + CELL_WIDTH - self.stride[1]) // CELL_WIDTH)

    def out_size(self, images: Tensor) -> list[int]:
        """Height and width of the output of the convolution."""
        sides = zip(images.shape[2:], self.padding, self.kernel_size, self.stride, strict=True)
        return [(side + 2 * padding - kernel) // stride + 1 for side, padding, kernel, stride in sides]

    def cells_of(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        height, width = self.out_size(images)
        rows, columns = height + self.cells[0] - 1, width // self.outputs + self.cells[1] - 1
        cells: Tensor = space_to_depth(images, dtype, rows, columns, self.stride[0], *self.padding)
        return cells

    def weight_of(self, weight: Tensor) -> Tensor:
        """``weight`` (F, 3, H, W) for cells: once for each of the outputs, shifted by the stride, with zeros around."""
        filters, (rows, columns), (cell_height, step) = weight.shape[0], self.cells, self.stride
        width = columns * CELL_WIDTH
        right, bottom = width - self.kernel_size[1], rows * cell_height - self.kernel_size[0]
        shifted = functional.pad(weight, (CELL_WIDTH - step, right, 0, bottom)).unfold(3, width, step).flip(3)
        by_cell = shifted.reshape(filters, CHANNELS, rows, cell_height, self.outputs, columns, CELL_WIDTH).permute(4, 0, 2, 5, 3, 6, 1)
        return by_cell.reshape(self.outputs * filters, rows, columns, -1).permute(0, 3, 1, 2)

    def __call__(self, images: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The convolution of ``images`` (N, 3, H, W) in ``dtype``, in channels-last order."""
        bias = None if bias is None else bias.repeat(self.outputs)
        out = functional.conv2d(self.cells_of(images, dtype), self.weight_of(weight), bias)
        height, width = self.out_size(images)
        return out.permute(0, 2, 3, 1).reshape(len(images), height, width, -1).permute(0, 3, 1, 2)


class ImageConv2d(nn.Conv2d):
    """A Conv2d of images with three channels, which runs over cells of pixels on Tensor Cores, unless the images need a gradient."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of ``input`` (N, 3, H, W)."""
        input = materialized(input)
        if torch.compiler.is_compiling() or not self._takes_cells(input):
            return super().forward(input)
        assert not isinstance(self.padding, str)
        over_cells = CellConvolution(self.stride, self.padding, self.kernel_size)
        if over_cells.out_size(input)[1] % over_cells.outputs:
            return super().forward(input)
        return over_cells(input, self.weight, self.bias, _compute_dtype(input))

    def _takes_cells(self, input: Tensor) -> bool:
        return (
            self.training
            and torch.is_grad_enabled()
            and input.dim() == 4
            and input.shape[1] == CHANNELS
            and input.dtype in DTYPES
            and (_compute_dtype(input) in HALF_DTYPES or torch.backends.cudnn.allow_tf32)
            and not input.requires_grad
            and (input.is_cuda or is_interpreted())
            and input.is_contiguous(memory_format=torch.channels_last)
            and input.device == self.weight.device
        )


def takes_images(module: nn.Module) -> bool:
    """Whether a plain Conv2d may become an ``ImageConv2d``."""
    assert isinstance(module, nn.Conv2d)
    is_plain = module.groups == 1 and module.padding_mode == "zeros" and module.dilation == (1, 1) and not isinstance(module.padding, str)
    return module.in_channels == CHANNELS and is_plain and CELL_WIDTH % module.stride[1] == 0


def _compute_dtype(input: Tensor) -> torch.dtype:
    """The dtype in which a convolution of ``input`` runs."""
    kind = input.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
