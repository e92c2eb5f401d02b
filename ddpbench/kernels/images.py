"""The convolution of images with three channels. cuDNN's kernels for half precision take a multiple of four, and pad in every pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from ddpbench.kernels.deferred import materialized
from ddpbench.kernels.functions import DTYPES
from ddpbench.kernels.registration import fake_of, operator
from ddpbench.kernels.tiles import INTERPRETED_BLOCK_ROWS, is_interpreted

CHANNELS, PADDED_CHANNELS = 3, 4
BLOCK_PIXELS, NUM_WARPS = 1024, 4
HALF_DTYPES = (torch.float16, torch.bfloat16)


@triton.jit
def pad_kernel(images, out, pixels, CHANNELS: tl.constexpr, PADDED_CHANNELS: tl.constexpr, BLOCK_PIXELS: tl.constexpr):
    """Casts the channels of each pixel and appends zeros."""
    pixel = tl.program_id(0).to(tl.int64) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)[:, None]
    channel = tl.arange(0, PADDED_CHANNELS)[None, :]
    value = tl.load(images + pixel * CHANNELS + channel, mask=(pixel < pixels) & (channel < CHANNELS), other=0)
    tl.store(out + pixel * PADDED_CHANNELS + channel, value.to(out.dtype.element_ty), mask=pixel < pixels)


@operator()
def pad_images(images: Tensor, dtype: torch.dtype) -> Tensor:
    """``images`` (N, 3, H, W) in channels-last order as ``dtype``, with a fourth channel of zeros."""
    out = _padded(images, dtype)
    pixels = images.numel() // CHANNELS
    block = INTERPRETED_BLOCK_ROWS if is_interpreted() else BLOCK_PIXELS
    with torch.cuda.device_of(images):
        pad_kernel[(-(-pixels // block),)](images, out, pixels, CHANNELS, PADDED_CHANNELS, block, num_warps=NUM_WARPS)
    return out


@fake_of(pad_images)
def _padded(images: Tensor, dtype: torch.dtype) -> Tensor:
    shape = (images.shape[0], PADDED_CHANNELS, *images.shape[2:])
    return torch.empty(shape, dtype=dtype, device=images.device, memory_format=torch.channels_last)


class ImageConv2d(nn.Conv2d):
    """A Conv2d of images with three channels, which runs in half precision with a fourth of zeros, unless they need a gradient."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of ``input`` (N, 3, H, W)."""
        input = materialized(input)
        if torch.compiler.is_compiling() or not self._can_pad(input):
            return super().forward(input)
        padded = pad_images(input, _compute_dtype(input))
        weight = functional.pad(self.weight, (0, 0, 0, 0, 0, PADDED_CHANNELS - CHANNELS))
        return functional.conv2d(padded, weight, self.bias, self.stride, self.padding, self.dilation)

    def _can_pad(self, input: Tensor) -> bool:
        return (
            self.training
            and torch.is_grad_enabled()
            and input.dim() == 4
            and input.shape[1] == CHANNELS
            and input.dtype in DTYPES
            and _compute_dtype(input) in HALF_DTYPES
            and not input.requires_grad
            and (input.is_cuda or is_interpreted())
            and input.is_contiguous(memory_format=torch.channels_last)
            and input.device == self.weight.device
        )


def takes_images(module: nn.Module) -> bool:
    """Whether a plain Conv2d may become an ``ImageConv2d``."""
    assert isinstance(module, nn.Conv2d)
    return module.in_channels == CHANNELS and module.groups == 1 and module.padding_mode == "zeros"


def _compute_dtype(input: Tensor) -> torch.dtype:
    """The dtype in which a convolution of ``input`` runs."""
    kind = input.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
