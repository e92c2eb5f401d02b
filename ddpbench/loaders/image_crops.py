"""Which part of each image goes into a batch: torchvision's crops and sizes, drawn for a whole batch at once.

In NumPy, whose calls on arrays this small neither start threads nor let the trainer's thread wait for the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F

from ddpbench.loaders.errors import NotSupportedError

MAX_ATTEMPTS = 10
"""Draws of torchvision's random crops that may not fit into the image."""

INTERPOLATIONS = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.NEAREST)

Pixels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Crops:
    """One row for each of N images: the part (top, left, height, width) that is resized to ``sizes`` (height, width).

    Of that, the output begins at ``offsets`` (top, left). All in pixels.
    """

    parts: Pixels
    sizes: Pixels
    offsets: Pixels


class CropAndSize(Protocol):
    """Turns an image of any size into one of ``size`` (height, width)."""

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def interpolation(self) -> InterpolationMode: ...

    def crops(self, images: Pixels, generator: np.random.Generator) -> Crops:
        """For ``images`` of (N, 2) pixels, height and width."""


@dataclass(frozen=True)
class RandomResizedCrop:
    """torchvision's of the same name."""

    size: tuple[int, int]
    interpolation: InterpolationMode
    scale: tuple[float, ...]
    ratio: tuple[float, ...]

    def crops(self, images: Pixels, generator: np.random.Generator) -> Crops:
        """A share of the area and a ratio are drawn until that fits, and then a place; the middle is taken if none fits."""
        drawn = generator.random((2, len(images), MAX_ATTEMPTS))
        low, high = self.ratio
        areas = images.prod(1)[:, None] * (self.scale[0] + drawn[0] * (self.scale[1] - self.scale[0]))
        ratios = low * (high / low) ** drawn[1]  # uniform in log space
        shapes = np.rint(np.sqrt(np.stack([areas / ratios, areas * ratios], 2))).astype(np.int64)
        fits = ((shapes > 0) & (shapes <= images[:, None])).all(2)
        shape = shapes[np.arange(len(images)), fits.argmax(1)]
        places = (generator.random((len(images), 2)) * (images - shape + 1)).astype(np.int64)
        parts = np.where(fits.any(1)[:, None], np.concatenate([places, shape], 1), self._centered(images))
        return Crops(parts, np.broadcast_to(self.size, images.shape), np.zeros_like(images))

    def _centered(self, images: Pixels) -> Pixels:
        """The largest part in the middle with an allowed ratio."""
        height, width = images.T
        shape = np.stack([np.minimum(height, np.rint(width / self.ratio[0])), np.minimum(width, np.rint(height * self.ratio[1]))], 1)
        return np.concatenate([(images - shape) // 2, shape], 1).astype(np.int64)


@dataclass(frozen=True)
class ResizeAndCenterCrop:
    """torchvision's Resize, to a size or of the shorter edge, and CenterCrop of at most that size."""

    size: tuple[int, int]
    interpolation: InterpolationMode
    resize: tuple[int, ...]

    def crops(self, images: Pixels, generator: np.random.Generator) -> Crops:
        if len(self.resize) == 2:
            sizes = np.broadcast_to(self.resize, images.shape)
        else:
            longer = self.resize[0] * images.max(1) / images.min(1)
            sizes = np.where(images == images.min(1)[:, None], self.resize[0], longer[:, None].astype(np.int64))
        offsets = np.rint((sizes - np.array(self.size)) / 2).astype(np.int64)
        return Crops(np.concatenate([np.zeros_like(images), images], 1), sizes, offsets)


def crop_and_size(steps: Sequence[Any]) -> tuple[CropAndSize, int]:
    """What the first of ``steps`` do to an image, and how many they are. Raises NotSupportedError."""
    first, second = [*steps, None, None][:2]
    if type(first) in (v1.RandomResizedCrop, v2.RandomResizedCrop) or is_of_timm(first, "RandomResizedCropAndInterpolation"):
        height, width = first.size
        return RandomResizedCrop((height, width), _known(first.interpolation), tuple(first.scale), tuple(first.ratio)), 1
    if type(first) in (v1.Resize, v2.Resize) and first.max_size is None:
        resize = (first.size,) if isinstance(first.size, int) else tuple(first.size)
        is_cropped = type(second) in (v1.CenterCrop, v2.CenterCrop)
        size = tuple(second.size) if is_cropped else resize
        if len(size) == 2 and size[0] <= resize[0] and size[1] <= resize[-1]:
            return ResizeAndCenterCrop((size[0], size[1]), _known(first.interpolation), resize), 1 + is_cropped
    raise NotSupportedError("its transform does not begin with RandomResizedCrop, or with Resize and a CenterCrop that is not larger")


def check_like_pil(transform: Any) -> None:
    """Raises NotSupportedError if ``transform``, of a tensor, interpolates in another way than it does an image of PIL."""
    if transform.antialias is False or _known(transform.interpolation) is InterpolationMode.NEAREST:
        raise NotSupportedError("its transform resizes tensors without smoothing")


def is_of_timm(transform: Any, name: str) -> bool:
    """Whether ``transform`` is timm's of that name, which does what torchvision's does. timm itself may not be installed."""
    return (type(transform).__module__, type(transform).__name__) == ("timm.data.transforms", name)


def _known(interpolation: Any) -> InterpolationMode:
    if isinstance(interpolation, tuple):  # of timm, which chooses one for each image
        raise NotSupportedError("its transform interpolates at random")
    found = InterpolationMode(interpolation)  # some versions of torchvision keep the string
    if found not in INTERPOLATIONS:
        raise NotSupportedError(f"its transform interpolates by {found.value}")
    return found


def cropped(image: Any, crops: Crops, number: int, crop: CropAndSize) -> Tensor:
    """The PIL ``image``, as row ``number`` of ``crops`` says: exactly what torchvision makes of it, uint8 (C, H, W)."""
    top, left, height, width = crops.parts[number].tolist()
    resized = F.resized_crop(image, top, left, height, width, crops.sizes[number].tolist(), crop.interpolation)
    found: Tensor = F.pil_to_tensor(F.crop(resized, *crops.offsets[number].tolist(), *crop.size))
    return found
