"""The loader ``torch-uint8``: DataLoader workers that return bytes.

The device normalises, so a quarter of the bytes are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.crop import PADDING, CropBox, center_crop, random_resized_crop
from ddpbench.data.datasets import cifar10
from ddpbench.data.datasets.samples import ArrayTransform, TransformSpec
from ddpbench.data.image_decoding import find_decoder, is_jpeg, jpeg_size, open_image, to_rgb
from ddpbench.data.loaders.workers import DataLoaderAdapter, open_data_loader
from ddpbench.data.normalize import make_normalize
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig

REDUCING_GAP = 2
"""A reduced decode is at least this many times the required size: PIL's thumbnails consider it good enough."""


def open_uint8(config: ResolvedConfig, shard: Shard) -> DataLoaderAdapter:
    """Open the loader ``torch-uint8``: batches in uint8 (B, S, S, C)."""
    find_decoder()  # cached here, so that not every worker searches
    normalize = make_normalize(shard.dataset, config.image_size, config.channels_last, shard.device)
    return open_data_loader(UINT8_TRANSFORMS, normalize, config, shard)


class Uint8Transform:
    """The recipes of the loader ``torch``, with the crop drawn before decoding.

    If the crop is large, a JPEG is decoded at a half, a quarter or an eighth of its size.
    """

    def __init__(self, image_size: int, augment: bool) -> None:
        self._side, self._augment = image_size, augment

    def __call__(self, content: bytes, file: str, watch: Stopwatch) -> Tensor:
        width, height = jpeg_size(content) or open_image(content, file).size
        box = random_resized_crop(width, height) if self._augment else center_crop(width, height, self._side)
        pixels = self._decode(content, file, box)
        watch.lap("decode")
        cropped = crop(pixels, box, pixels.shape[1] / height, pixels.shape[2] / width)
        sample: Tensor = functional.resize(cropped, [self._side, self._side], antialias=True)[0].permute(1, 2, 0)
        if self._augment and torch.rand(()) < 0.5:
            sample = sample.flip(1)
        watch.lap("augment")
        return sample

    def _decode(self, content: bytes, file: str, box: CropBox) -> Tensor:
        """The image, uint8 (3, H, W), channels last in memory, as small as ``box`` allows."""
        fraction = min(box.height, box.width) // (REDUCING_GAP * self._side)
        if fraction < 2 and is_jpeg(content) and (decode := find_decoder()):
            try:
                return decode(content)
            except RuntimeError:
                pass  # PIL decides whether the file is damaged
        image = open_image(content, file)
        if fraction >= 2:
            image.draft("RGB", (image.width // fraction, image.height // fraction))  # only for JPEGs; rounds down to a power of two
        return torch.from_numpy(np.array(to_rgb(image, file))).permute(2, 0, 1)


def crop(pixels: Tensor, box: CropBox, down: float, across: float) -> Tensor:
    """The part (1, 3, h, w) of ``pixels`` that ``box`` marks.

    ``box`` refers to the full-size image. The result is channels last in memory.
    """
    top, left = round(box.top * down), round(box.left * across)
    height, width = max(1, round(box.height * down)), max(1, round(box.width * across))
    return pixels[None, :, top : top + height, left : left + width].contiguous(memory_format=torch.channels_last)


def array_transform(dataset: str, image_size: int | None, augment: bool) -> ArrayTransform:
    """The transform of images in memory, in uint8.

    Only CIFAR-10 is augmented; the device resizes if needed.
    """
    if augment and dataset == "cifar10":
        return CropAndFlipUint8()
    return torch.from_numpy


class CropAndFlipUint8:
    """The classic augmentation of CIFAR-10, one image at a time."""

    def __init__(self) -> None:
        steps = [v2.RandomCrop(cifar10.SIDE, padding=PADDING), v2.RandomHorizontalFlip()]
        self._transform: Callable[[Tensor], Tensor] = v2.Compose(steps)

    def __call__(self, image: npt.NDArray[Any]) -> Tensor:
        return self._transform(torch.from_numpy(image).permute(2, 0, 1)).permute(1, 2, 0)


UINT8_TRANSFORMS = TransformSpec("torch-uint8", Uint8Transform, array_transform)
