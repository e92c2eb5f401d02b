"""The convolution of a shortcut. The gradient of its input is added to that of the block in the kernel that has made the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddpbench.kernels.functions import twin_of


class ShortcutConv2d(nn.Conv2d):
    """A Conv2d whose input other modules use, too."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of ``input`` (N, C, H, W)."""
        return super().forward(input if torch.compiler.is_compiling() else twin_of(input))
