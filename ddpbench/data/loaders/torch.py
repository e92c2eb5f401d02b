"""The loader ``torch``, as most people run it: decode with PIL, the classic transforms one after another, float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from ddpbench.data.augment import FRAME
from ddpbench.data.crop import shorter_edge
from ddpbench.data.datasets import cifar10
from ddpbench.data.datasets.files import FILE_SETS
from ddpbench.data.datasets.samples import ArrayView, SampleRecipe
from ddpbench.data.images import decode
from ddpbench.data.loaders.workers import Workers, open_workers
from ddpbench.data.normalize import NORMALISATION, in_layout
from ddpbench.data.shard import Shard
from ddpbench.data.stopwatch import Stopwatch
from ddpbench.record.resolved import Settled


def open_stock(config: Settled, shard: Shard) -> Workers:
    """Batches in float32 (B, C, S, S), normalised; only their layout is left to the device."""

    def finish(samples: Tensor) -> Tensor:
        return in_layout(samples, config.channels_last)

    return open_workers(STOCK, finish, config, shard)


class StockView:
    """The classic ImageNet recipes: random resized crop and flip to train; the middle, of which an eighth is cut off, to validate."""

    def __init__(self, image_size: int, augment: bool) -> None:
        steps: list[Any] = [transforms.Resize(shorter_edge(image_size)), transforms.CenterCrop(image_size)]
        if augment:
            steps = [transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip()]
        self._transform = _normalised("imagenet", *steps)

    def __call__(self, content: bytes, file: str, watch: Stopwatch) -> Tensor:
        image = decode(content, file)
        watch.lap("decode")
        sample = self._transform(image)
        watch.lap("augment")
        return sample


def array_view(dataset: str, image_size: int | None, augment: bool) -> ArrayView:
    """What makes a sample of ``dataset`` fit to train on. Only CIFAR-10 is augmented; points stay as they are.

    The classic CIFAR recipe: crop out of a frame of black pixels, and flip; then, if need be, resize.
    """
    if dataset not in NORMALISATION:
        return torch.from_numpy
    steps: list[Any] = [_picture]
    if augment and dataset == "cifar10":
        steps += [transforms.RandomCrop(cifar10.SIDE, padding=FRAME), transforms.RandomHorizontalFlip()]
    if image_size != FILE_SETS[dataset].side:
        steps.append(transforms.Resize(image_size))
    return _normalised(dataset, *steps)


def _picture(image: npt.NDArray[Any]) -> Image.Image:
    return Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)


def _normalised(dataset: str, *steps: Any) -> Callable[[Any], Tensor]:
    known = NORMALISATION[dataset]
    composed: Callable[[Any], Tensor] = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(known.mean, known.std)])
    return composed


STOCK = SampleRecipe("torch", StockView, array_view)
