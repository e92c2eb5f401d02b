"""Models for CIFAR-10.

``cifar.vgg16x64`` builds VGG16 with 64 channels in its first stage, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from torch import nn

from ddpbench.record.errors import UsageError

VGG16_STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
"""Output channels of the thirteen convolutions at width 1; a max-pool ends every stage."""

VGG16_CLASSIFIER = (64, 64)
"""Output channels of the convolutions that replace Linear layers, at width 1."""


def build(width: int, image_size: int, classes: int) -> nn.Module:
    """VGG16 with batch norm: images (B, 3, S, S) to scores (B, classes).

    ``width`` is the channels of the first stage; all other stages keep the published proportions. Width 64 with ten classes has
    33,650,624 parameters. Convolutions have no bias. The classifier is three 1x1 convolutions, at width 64 512-4096-4096-classes, with
    batch norm and ReLU after the first two. The last max-pool reduces any multiple of 16 to one pixel; for 32 px it is the usual 2x2.
    Raises UsageError for other image sizes.
    """
    if image_size % 16:
        raise UsageError(f"VGG16 on CIFAR-10 does not support images of {image_size} px", "set --image-size to a multiple of 16")
    layers: list[nn.Module] = []
    channels = 3
    for stage, pool in zip(VGG16_STAGES, (2, 2, 2, 2, image_size // 16), strict=True):
        for times in stage:
            layers += [nn.Conv2d(channels, times * width, 3, padding=1, bias=False), *_activated(times * width)]
            channels = times * width
        layers.append(nn.MaxPool2d(pool))
    for times in VGG16_CLASSIFIER:
        layers += [nn.Conv2d(channels, times * width, 1, bias=False), *_activated(times * width)]
        channels = times * width
    return nn.Sequential(*layers, nn.Conv2d(channels, classes, 1, bias=False), nn.Flatten())


def _activated(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def __getattr__(name: str) -> Callable[[int, int], nn.Module]:
    width = re.fullmatch(r"vgg16x(\d+)", name)
    if not width:
        raise AttributeError(f"no model '{name}' for CIFAR-10")
    return partial(build, int(width[1]))
