"""The loader ``torch-uint8``: DataLoader workers that stay at bytes; normalising, a quarter of the bytes later, is the device's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from ddpbench.data.augment import FRAME
from ddpbench.data.crop import Box, middle_box, random_box
from ddpbench.data.datasets import cifar10
from ddpbench.data.datasets.samples import ArrayView, SampleRecipe
from ddpbench.data.images import in_rgb, opened
from ddpbench.data.jpeg import decoder, is_jpeg, size_of
from ddpbench.data.loaders.workers import Workers, open_workers
from ddpbench.data.normalize import finisher
from ddpbench.data.shard import Shard
from ddpbench.data.stopwatch import Stopwatch
from ddpbench.record.resolved import Settled

REDUCING_GAP = 2
"""What is decoded at a part of its size is this many times as large as needed at least: what PIL's thumbnails take for as good."""


def open_uint8(config: Settled, shard: Shard) -> Workers:
    """Batches in uint8 (B, S, S, C)."""
    decoder()  # looked for once, and not by every worker
    finish = finisher(shard.dataset, config.image_size, config.channels_last, shard.device)
    return open_workers(BYTEWISE, finish, config, shard)


class ByteView:
    """The recipes of the loader ``torch``. The part that will be seen is drawn before the image is decoded.

    Where that part is large, a JPEG is decoded at a half, a quarter or an eighth of its size.
    """

    def __init__(self, image_size: int, augment: bool) -> None:
        self._side, self._augment = image_size, augment

    def __call__(self, content: bytes, file: str, watch: Stopwatch) -> Tensor:
        width, height = size_of(content) or opened(content, file).size
        box = random_box(width, height) if self._augment else middle_box(width, height, self._side)
        pixels = self._decoded(content, file, box)
        watch.lap("decode")
        seen = cut(pixels, box, pixels.shape[1] / height, pixels.shape[2] / width)
        sample: Tensor = functional.resize(seen, [self._side, self._side], antialias=True)[0].permute(1, 2, 0)
        if self._augment and torch.rand(()) < 0.5:
            sample = sample.flip(1)
        watch.lap("augment")
        return sample

    def _decoded(self, content: bytes, file: str, box: Box) -> Tensor:
        """The image, uint8 (3, H, W) with the channels last in memory, as small as ``box`` allows."""
        fraction = min(box.height, box.width) // (REDUCING_GAP * self._side)
        if fraction < 2 and is_jpeg(content) and (decode := decoder()):
            try:
                return decode(content)
            except RuntimeError:
                pass  # PIL has the last word on what is damaged
        image = opened(content, file)
        if fraction >= 2:
            image.draft("RGB", (image.width // fraction, image.height // fraction))  # of a JPEG only, the next power of two below
        return torch.from_numpy(np.array(in_rgb(image, file))).permute(2, 0, 1)


def cut(pixels: Tensor, box: Box, down: float, across: float) -> Tensor:
    """The part (1, 3, h, w) of ``pixels`` that ``box`` marks in the image of full size, with the channels last in memory."""
    top, left = round(box.top * down), round(box.left * across)
    height, width = max(1, round(box.height * down)), max(1, round(box.width * across))
    return pixels[None, :, top : top + height, left : left + width].contiguous(memory_format=torch.channels_last)


def array_view(dataset: str, image_size: int | None, augment: bool) -> ArrayView:
    """Images that lie in memory, as bytes. Only CIFAR-10 is augmented; another size is the device's to make."""
    if augment and dataset == "cifar10":
        return CropAndFlipBytes()
    return torch.from_numpy


class CropAndFlipBytes:
    """The classic augmentation of CIFAR-10, an image at a time."""

    def __init__(self) -> None:
        steps = [v2.RandomCrop(cifar10.SIDE, padding=FRAME), v2.RandomHorizontalFlip()]
        self._transform: Callable[[Tensor], Tensor] = v2.Compose(steps)

    def __call__(self, image: npt.NDArray[Any]) -> Tensor:
        return self._transform(torch.from_numpy(image).permute(2, 0, 1)).permute(1, 2, 0)


BYTEWISE = SampleRecipe("torch-uint8", ByteView, array_view)
