"""How pixels of a data set are centred and scaled, and how they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of red, green and blue, of pixels between 0 and 1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR10 = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def in_layout(images: Tensor, channels_last: bool | None) -> Tensor:
    """``images`` (B, 3, S, S) with the channels last in memory, or with the columns last; the same tensor where it is so already."""
    return images.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
