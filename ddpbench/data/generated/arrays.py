"""Generated images in the shape of CIFAR-10 and MNIST.

They are the same on every machine. A network that trains correctly learns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpbench.data.in_memory import InMemoryDataset, Split
from ddpbench.record.registry import DATASETS

CLASSES = 10
CELL = 4
"""Side in pixels of the squares in a class's pattern."""

MAX_SHIFT = 2
"""Maximum shift of a pattern in pixels, in each direction."""

NOISE_BYTES = 1 << 20
"""Bytes of noise in total; each image uses a random window of it."""


@dataclass(frozen=True)
class ImageStyle:
    """Look and number of images, equal to that of the original dataset so that epochs have equal length."""

    side: int
    images: Mapping[Split, int]
    contrast: int  # levels of the class's pattern, of 255; noise has the rest
    lit_fraction: float  # fraction of the pattern's squares that are not black


GENERATED: Mapping[str, ImageStyle] = {
    "cifar10": ImageStyle(32, {"train": 50_000, "held-out": 10_000}, contrast=96, lit_fraction=1.0),
    "mnist": ImageStyle(28, {"train": 60_000, "held-out": 10_000}, contrast=128, lit_fraction=0.3),
}
"""The generated datasets, by the dataset that each stands in for."""


def generate_images(dataset: str, part: Split, images: int | None = None, classes: int = CLASSES) -> InMemoryDataset:
    """Split ``part`` of the generated dataset that stands in for ``dataset``.

    All of it, or ``images`` images; takes a few tenths of a second. Each class has a pattern of coloured squares. An image is the pattern
    of its class, shifted by up to two pixels, plus individual noise. All arithmetic is in integers, so that no machine rounds
    differently.
    """
    import numpy as np

    style, channels = GENERATED[dataset], DATASETS[dataset].channels
    # RandomState, because its stream is fixed for all numpy versions, unlike Generator's
    shared_rng, rng = np.random.RandomState(0), np.random.RandomState(1 if part == "train" else 2)
    grid = (CLASSES, style.side // CELL, style.side // CELL)
    squares = shared_rng.randint(0, style.contrast, (*grid, channels)) * (shared_rng.random_sample(grid) < style.lit_fraction)[..., None]
    pictures = squares.astype(np.uint8).repeat(CELL, 1).repeat(CELL, 2)
    shifts = range(-MAX_SHIFT, MAX_SHIFT + 1)
    shifted = np.stack([np.roll(pictures, (down, right), (1, 2)) for down in shifts for right in shifts], 1)
    grain = shared_rng.randint(0, 256 - style.contrast, NOISE_BYTES).astype(np.uint8)

    count, pixels = images or style.images[part], style.side * style.side * channels
    labels = rng.randint(0, classes, count).astype(np.int64)
    samples = shifted[labels, rng.randint(0, len(shifts) ** 2, count)].reshape(count, pixels)
    samples += np.lib.stride_tricks.sliding_window_view(grain, pixels)[rng.randint(0, NOISE_BYTES - pixels, count)]
    return InMemoryDataset(samples.reshape(count, style.side, style.side, channels), labels, dataset, generated=True)
