"""Modules that take the place of torch's in a fused model: the convolution of a shortcut, and the average over all pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddpbench.kernels.deferred import materialized
from ddpbench.kernels.functions import twin_of


class ShortcutConv2d(nn.Conv2d):
    """A Conv2d whose input other modules use, too."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of ``input`` (N, C, H, W)."""
        return super().forward(input if torch.compiler.is_compiling() else twin_of(input))


class GlobalAvgPool2d(nn.AdaptiveAvgPool2d):
    """An AdaptiveAvgPool2d to a single pixel."""

    def forward(self, input: Tensor) -> Tensor:
        """The mean of ``input`` (N, C, H, W) over its pixels: (N, C, 1, 1)."""
        input = materialized(input)
        is_map = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last)
        if torch.compiler.is_compiling() or not (is_map and pools_globally(self)):
            return super().forward(input)
        return input.permute(0, 2, 3, 1).flatten(1, 2).mean(1)[:, :, None, None]


def pools_globally(pool: nn.AdaptiveAvgPool2d) -> bool:
    """Whether its output has a single pixel."""
    return pool.output_size in (1, (1, 1), [1, 1])
