"""Models for CIFAR-10."""

from __future__ import annotations

from torch import nn

from ddpbench.record.errors import UsageError

VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Output channels of the thirteen convolutions; a max-pool ends every stage."""


def vgg16(image_size: int, classes: int) -> nn.Module:
    """VGG16 with batch norm: images (B, 3, S, S) to scores (B, classes); 33,650,624 parameters for ten classes.

    No convolution has a bias. The classifier is three 1x1 convolutions, 512-4096-4096-classes, with batch norm and ReLU
    after the first two. The last max-pool brings any multiple of 16 down to one pixel; for 32 px it is the usual 2x2.
    Raises UsageError for other sizes.
    """
    if image_size % 16:
        raise UsageError(f"vgg16-cifar10 cannot take images of {image_size} px", "choose a multiple of 16 as --image-size")
    layers: list[nn.Module] = []
    channels = 3
    for stage, pool in zip(VGG16_STAGES, (2, 2, 2, 2, image_size // 16), strict=True):
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(pool))
    for width in (4096, 4096):
        layers += [nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(channels, classes, 1, bias=False), nn.Flatten())
