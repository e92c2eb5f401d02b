"""The stock pipeline of one sample: decode with PIL, the classic transforms, float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from torchvision import transforms

from ddpbench.data.cifar10 import SIDE, Cifar10
from ddpbench.data.folder import ImageTree
from ddpbench.data.loader import Batch
from ddpbench.data.pixels import CIFAR10, IMAGENET, Normalisation
from ddpbench.record.errors import BenchError

Sample = tuple[Tensor, int]
Transform = Callable[[Image.Image], Tensor]


class TreeSamples(Dataset[Sample | BenchError]):
    """Images of a tree, decoded when asked for; a file that cannot be read gives the error instead of a sample."""

    def __init__(self, tree: ImageTree, transform: Transform) -> None:
        self.description = tree.description
        self._tree, self._transform = tree, transform

    def __len__(self) -> int:
        return len(self._tree.files)

    def __getitem__(self, index: int) -> Sample | BenchError:
        try:
            image = decode(self._tree.files[index])
        except BenchError as problem:
            return problem
        return self._transform(image), self._tree.labels[index]


class CifarSamples(Dataset[Sample]):
    """Images of CIFAR-10, which lie in memory."""

    def __init__(self, cifar: Cifar10, transform: Transform) -> None:
        self.description = cifar.description
        self._cifar, self._transform = cifar, transform

    def __len__(self) -> int:
        return len(self._cifar.labels)

    def __getitem__(self, index: int) -> Sample:
        return self._transform(Image.fromarray(self._cifar.images[index])), self._cifar.labels[index]


def decode(file: str) -> Image.Image:
    """The image in ``file`` as RGB. Raises BenchError naming the file where it is missing, damaged or no image."""
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except Exception as problem:  # PIL's decoders raise nearly anything on damaged files
        why = "not an image" if isinstance(problem, UnidentifiedImageError) else getattr(problem, "strerror", None) or problem
        raise BenchError(f"cannot read the image '{file}': {why}", "repair the file or take it away") from problem


def imagenet_transform(image_size: int) -> Transform:
    """Random resized crop and flip: the classic ImageNet training recipe."""
    return _compose(IMAGENET, transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip())


def cifar10_transform(image_size: int) -> Transform:
    """Crop out of a frame of four black pixels, and flip: the classic CIFAR training recipe; then, if need be, resize."""
    resize = [transforms.Resize(image_size)] if image_size != SIDE else []
    return _compose(CIFAR10, transforms.RandomCrop(SIDE, padding=4), transforms.RandomHorizontalFlip(), *resize)


def _compose(normalisation: Normalisation, *augmentations: Any) -> Transform:
    steps = [*augmentations, transforms.ToTensor(), transforms.Normalize(normalisation.mean, normalisation.std)]
    composed: Transform = transforms.Compose(steps)
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
