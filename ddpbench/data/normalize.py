"""Normalisation of pixels per dataset, and memory layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ddpbench.data.loader import DeviceTransform


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel, for pixels between 0 and 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


NORMALIZATION: Mapping[str, Normalization] = {
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": Normalization((0.1307,), (0.3081,)),
}
"""By dataset, with the values of the usual recipes. Vector datasets have none: they are used unchanged."""


def to_memory_format(samples: Tensor, channels_last: bool) -> Tensor:
    """Images (B, C, S, S) in channels-last or contiguous layout; vectors unchanged.

    Returns the same tensor if it already has that layout.
    """
    return samples.contiguous(memory_format=torch.channels_last if channels_last and samples.dim() == 4 else torch.contiguous_format)


def make_normalize(dataset: str, image_size: int | None, channels_last: bool, device: torch.device) -> DeviceTransform:
    """A function from stored samples to training samples, both on ``device``.

    Images, uint8 (B, S, S, C), become normalised float32 (B, C, ``image_size``, ``image_size``); vectors are unchanged.
    """
    if dataset not in NORMALIZATION:
        return lambda points: points
    normalization = NORMALIZATION[dataset]
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (normalization.mean, normalization.std))
    scale, shift = ((1 / (255 * std)).float().to(device), (-mean / std).float().to(device))

    @lru_cache(maxsize=1)  # the width never changes
    def row(width: int) -> tuple[Tensor, Tensor]:
        return scale.repeat(width), shift.repeat(width)

    def finish(images: Tensor) -> Tensor:
        scales, shifts = row(images.shape[2])  # a CPU is three times as fast on long rows as on three channels
        normalised = _scale_and_shift(images.flatten(2), scales, shifts).view(images.shape).permute(0, 3, 1, 2)
        if image_size != normalised.shape[-1]:
            normalised = interpolate(normalised, image_size, mode="bilinear", antialias=True)
        return to_memory_format(normalised, channels_last)

    return finish


def _scale_and_shift(pixels: Tensor, scales: Tensor, shifts: Tensor) -> Tensor:
    """Scale and shift to float32.

    A single kernel on a GPU; on a CPU that operator would first copy all pixels to float32, so it runs in place instead.
    """
    if pixels.is_cuda:
        return torch.addcmul(shifts, pixels, scales)
    return pixels.float().mul_(scales).add_(shifts)
