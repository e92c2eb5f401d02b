"""Wide residual networks (Zagoruyko and Komodakis, arXiv 1605.07146).

``wrn.wrn28x10`` builds WRN-28-10, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

DROPOUT = 0.3
STAGES = ((16, 1), (32, 2), (64, 2))
"""Channels at width 1, and stride of the first block, per stage."""


class Block(nn.Module):
    """BN-ReLU-conv-dropout-BN-ReLU-conv with a shortcut.

    Maps (B, in_channels, S, S) to (B, out_channels, S / stride, S / stride). If the shape changes, the shortcut is a 1x1 convolution of the
    activated input.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1),
            nn.Dropout(DROPOUT),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
        )
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride) if in_channels != out_channels or stride != 1 else None

    def forward(self, images: Tensor) -> Tensor:
        activated: Tensor = self.activate(images)
        shortcut: Tensor = self.shortcut(activated) if self.shortcut is not None else images
        output: Tensor = self.residual(activated) + shortcut
        return output


def build(depth: int, width: int, image_size: int, classes: int) -> nn.Module:
    """WRN-``depth``-``width`` with dropout 0.3.

    Maps images (B, 3, S, S) of any size to scores (B, classes). ``depth`` is 6 n + 4 for n blocks in each of the three stages.
    Convolutions have biases, as in the code of the published run but not in the paper: WRN-28-10 has 36,489,290 parameters, of which
    10,096 are biases of convolutions. The published run states neither depth and width nor its shortcut; the shortcut is the paper's, and
    weights are initialised as in He et al. (arXiv 1502.01852).
    """
    channels = STAGES[0][0]
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for base, stride in STAGES:
        for block in range((depth - 4) // 6):
            layers.append(Block(channels, base * width, stride if block == 0 else 1))
            channels = base * width
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return model


def __getattr__(name: str) -> Callable[[int, int], nn.Module]:
    numbers = re.fullmatch(r"wrn(\d+)x(\d+)", name)
    if not numbers:
        raise AttributeError(f"no Wide-ResNet '{name}'")
    return partial(build, int(numbers[1]), int(numbers[2]))
