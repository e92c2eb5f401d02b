"""Made images in the shape of CIFAR-10 and MNIST, the same on every machine: a net that trains as it should learns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpbench.data.in_memory import InMemoryDataset, Split
from ddpbench.record.registry import DATASETS

CLASSES = 10
CELL = 4
"""Pixels a side of the squares that a class's picture is made of."""

MAX_SHIFT = 2
"""Pixels that a picture lies off its place at most, in each direction."""

NOISE_BYTES = 1 << 20
"""Bytes of noise in all, of which every image has a window of its own."""


@dataclass(frozen=True)
class ImageStyle:
    """How images look, and how many there are: as many as in the set they stand for, so that an epoch is as long."""

    side: int
    images: Mapping[Split, int]
    contrast: int  # of the class's picture, of 255; noise has the rest
    lit_fraction: float  # share of the picture's squares that are not black


GENERATED: Mapping[str, ImageStyle] = {
    "cifar10": ImageStyle(32, {"train": 50_000, "held-out": 10_000}, contrast=96, lit_fraction=1.0),
    "mnist": ImageStyle(28, {"train": 60_000, "held-out": 10_000}, contrast=128, lit_fraction=0.3),
}
"""The made sets, by the data set that each stands for."""


def generate_images(dataset: str, part: Split, images: int | None = None, classes: int = CLASSES) -> InMemoryDataset:
    """``part`` of the made set that stands for ``dataset``, all of it or that many images; takes a few tenths of a second.

    Every class has a picture of coloured squares. An image is its class's picture, shifted by up to two pixels, under noise
    of its own. Whole numbers throughout, so that no machine rounds in another way.
    """
    import numpy as np

    shape, channels = GENERATED[dataset], DATASETS[dataset].channels
    # RandomState: its numbers are fixed for good, which those of numpy's Generator are not
    common, own = np.random.RandomState(0), np.random.RandomState(1 if part == "train" else 2)
    grid = (CLASSES, shape.side // CELL, shape.side // CELL)
    squares = common.randint(0, shape.contrast, (*grid, channels)) * (common.random_sample(grid) < shape.lit_fraction)[..., None]
    pictures = squares.astype(np.uint8).repeat(CELL, 1).repeat(CELL, 2)
    places = range(-MAX_SHIFT, MAX_SHIFT + 1)
    shifted = np.stack([np.roll(pictures, (down, right), (1, 2)) for down in places for right in places], 1)
    grain = common.randint(0, 256 - shape.contrast, NOISE_BYTES).astype(np.uint8)

    count, pixels = images or shape.images[part], shape.side * shape.side * channels
    labels = own.randint(0, classes, count).astype(np.int64)
    samples = shifted[labels, own.randint(0, len(places) ** 2, count)].reshape(count, pixels)
    samples += np.lib.stride_tricks.sliding_window_view(grain, pixels)[own.randint(0, NOISE_BYTES - pixels, count)]
    return InMemoryDataset(
        samples.reshape(count, shape.side, shape.side, channels), labels, describe_generated(dataset, count), generated=True
    )


def describe_generated(dataset: str, images: int) -> str:
    """What a report calls the made set that stands for ``dataset``."""
    return f"made set in the shape of {DATASETS[dataset].title}, {images:,} images"
