"""The data sets by name: what people call each, and what one sample of it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DatasetName = Literal["imagenet", "cifar10", "mnist", "disc", "gemm"]


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """One data set: of images with so many ``channels``, or, where it has none, of vectors.

    Vectors are of so many ``features``, or, where it has none, of as many as there are classes.
    """

    title: str
    channels: int = 0
    features: int = 0

    def input_shape(self, image_size: int | None, classes: int) -> tuple[int, ...]:
        """The shape of one sample: (channels, S, S), S being ``image_size`` in pixels, or (features,)."""
        if not self.channels:
            return (self.features or classes,)
        assert image_size, "images have a size"
        return (self.channels, image_size, image_size)


DATASETS: Mapping[str, DatasetSpec] = {
    "imagenet": DatasetSpec(title="ImageNet", channels=3),
    "cifar10": DatasetSpec(title="CIFAR-10", channels=3),
    "mnist": DatasetSpec(title="MNIST", channels=1),
    "disc": DatasetSpec(title="the disc's points", features=2),
    "gemm": DatasetSpec(title="matrices"),
}
"""Every data set by name."""
