"""The stock pipeline of one sample: decode with PIL, the classic transforms, float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from torchvision import transforms

from ddpbench.data import cifar10
from ddpbench.data.arrays import Arrays
from ddpbench.data.augment import FRAME
from ddpbench.data.folder import ImageTree
from ddpbench.data.loader import Batch
from ddpbench.data.pixels import NORMALISATION
from ddpbench.data.sets import FILE_SETS
from ddpbench.record.errors import BenchError

Sample = tuple[Tensor, int]
Transform = Callable[[Image.Image], Tensor]
ArrayTransform = Callable[[npt.NDArray[Any]], Tensor]


class TreeSamples(Dataset[Sample | BenchError]):
    """Images of a tree, decoded when asked for; a file that cannot be read gives the error instead of a sample."""

    def __init__(self, tree: ImageTree, transform: Transform) -> None:
        self._tree, self._transform = tree, transform

    def __len__(self) -> int:
        return len(self._tree.files)

    def __getitem__(self, index: int) -> Sample | BenchError:
        try:
            image = decode(self._tree.files[index])
        except BenchError as problem:
            return problem
        return self._transform(image), self._tree.labels[index]


class ArraySamples(Dataset[Sample]):
    """Images or points that lie in memory."""

    def __init__(self, arrays: Arrays, transform: ArrayTransform) -> None:
        self._arrays, self._transform = arrays, transform

    def __len__(self) -> int:
        return len(self._arrays.labels)

    def __getitem__(self, index: int) -> Sample:
        return self._transform(self._arrays.samples[index]), int(self._arrays.labels[index])


def decode(file: str) -> Image.Image:
    """The image in ``file`` as RGB. Raises BenchError naming the file where it is missing, damaged or no image."""
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except Exception as problem:  # PIL's decoders raise nearly anything on damaged files
        why = "not an image" if isinstance(problem, UnidentifiedImageError) else getattr(problem, "strerror", None) or problem
        raise BenchError(f"cannot read the image '{file}': {why}", "repair the file or take it away") from problem


def tree_transform(image_size: int, augment: bool) -> Transform:
    """The classic ImageNet recipes: random resized crop and flip to train; the middle, of which an eighth is cut off, to validate."""
    if augment:
        return _compose("imagenet", transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip())
    return _compose("imagenet", transforms.Resize(round(image_size * 256 / 224)), transforms.CenterCrop(image_size))


def array_transform(dataset: str, image_size: int | None, augment: bool) -> ArrayTransform:
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
    return _compose(dataset, *steps)


def _picture(image: npt.NDArray[Any]) -> Image.Image:
    return Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)


def _compose(dataset: str, *steps: Any) -> Callable[[Any], Tensor]:
    known = NORMALISATION[dataset]
    composed: Callable[[Any], Tensor] = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(known.mean, known.std)])
    return composed


def collate(samples: list[Sample | BenchError]) -> Batch | BenchError:
    """One batch of the samples, or the first error among them.

    An error travels as a result: raised in a worker it would arrive wrapped in the worker's traceback.
    """
    for sample in samples:
        if isinstance(sample, BenchError):
            return sample
    images, labels = default_collate(samples)
    return images, labels
