"""The loader ``torch``, in the usual way.

PIL decoding, the classic transforms in sequence, float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.crop import PADDING, resize_size
from ddpbench.data.datasets import cifar10
from ddpbench.data.datasets.files import DATASET_FILES
from ddpbench.data.datasets.samples import ArrayTransform, TransformSpec
from ddpbench.data.image_decoding import decode
from ddpbench.data.loaders.workers import DataLoaderAdapter, open_data_loader
from ddpbench.data.normalize import NORMALIZATION, to_memory_format
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig


def open_torch(config: ResolvedConfig, shard: Shard) -> DataLoaderAdapter:
    """Open the loader ``torch``: normalised float32 (B, C, S, S).

    The device only changes the memory layout.
    """

    def finish(samples: Tensor) -> Tensor:
        return to_memory_format(samples, config.channels_last)

    return open_data_loader(PIL_TRANSFORMS, finish, config, shard)


class PilTransform:
    """The classic ImageNet recipe.

    Random resized crop and flip for training; for validation, resize and a centre crop of seven eighths of the shorter edge.
    """

    def __init__(self, image_size: int, augment: bool) -> None:
        steps: list[Any] = [transforms.Resize(resize_size(image_size)), transforms.CenterCrop(image_size)]
        if augment:
            steps = [transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip()]
        self._transform = _normalized("imagenet", *steps)

    def __call__(self, content: bytes, file: str, watch: Stopwatch) -> Tensor:
        image = decode(content, file)
        watch.lap("decode")
        sample = self._transform(image)
        watch.lap("augment")
        return sample


def array_transform(dataset: str, image_size: int | None, augment: bool) -> ArrayTransform:
    """The transform of samples of ``dataset``.

    Only CIFAR-10 is augmented; points are unchanged. The classic CIFAR recipe: random crop after padding with black pixels, then flip;
    then a resize if needed.
    """
    if dataset not in NORMALIZATION:
        return torch.from_numpy
    steps: list[Any] = [_to_pil]
    if augment and dataset == "cifar10":
        steps += [transforms.RandomCrop(cifar10.SIDE, padding=PADDING), transforms.RandomHorizontalFlip()]
    if image_size != DATASET_FILES[dataset].side:
        steps.append(transforms.Resize(image_size))
    return _normalized(dataset, *steps)


def _to_pil(image: npt.NDArray[Any]) -> Image.Image:
    return Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)


def _normalized(dataset: str, *steps: Any) -> Callable[[Any], Tensor]:
    normalization = NORMALIZATION[dataset]
    composed: Callable[[Any], Tensor] = transforms.Compose(
        [*steps, transforms.ToTensor(), transforms.Normalize(normalization.mean, normalization.std)]
    )
    return composed


PIL_TRANSFORMS = TransformSpec("torch", PilTransform, array_transform)
