"""Small data sets for tests, the same in every run: a tree of JPEGs as ImageNet has it, and CIFAR-10's python batches."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR10_BATCH = 20
CIFAR10_IMAGES = 5 * CIFAR10_BATCH


def colour(label: int) -> tuple[int, int, int]:
    """The mean red, green and blue of every image of class ``label``, far from black and white and unlike each other."""
    return 50 + label * 37 % 150, 60 + label * 59 % 130, 70 + label * 83 % 110


def image_tree(root: Path, classes: int = 4, images: int = 4, texture: int = 40, grain: int = 10) -> Path:
    """``root``/train with ``classes`` folders of ``images`` JPEGs of 80 x 60 pixels.

    Each is noise of ``texture`` levels, in grains of that many pixels, around the colour of its class.
    """
    rng = np.random.default_rng(0)
    for label in range(classes):
        folder = root / "train" / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in range(images):
            coarse = np.asarray(colour(label)) + rng.integers(-texture, texture + 1, (60 // grain, 80 // grain, 3))
            Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize((80, 60), Image.Resampling.BICUBIC).save(
                folder / f"{number}.JPEG", quality=95
            )
    return root


def truncate(file: Path) -> None:
    """Leaves the first half of ``file``."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def cifar10(root: Path) -> Path:
    """``root``/cifar-10-batches-py with five batches of random pixels; image number n has the label n mod 10."""
    rng = np.random.default_rng(0)
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number in range(5):
        batch = {
            b"data": rng.integers(0, 256, (CIFAR10_BATCH, 3072), dtype=np.uint8),
            b"labels": [label % 10 for label in range(CIFAR10_BATCH)],
        }
        (folder / f"data_batch_{number + 1}").write_bytes(pickle.dumps(batch, protocol=2))
    return root
