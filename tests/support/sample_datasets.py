"""Small reproducible datasets: a JPEG folder like ImageNet, CIFAR-10 python batches, MNIST IDX files."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR10_BATCH = 20
CIFAR10_IMAGES = 5 * CIFAR10_BATCH
MNIST_IMAGES, MNIST_HELD_OUT = 50, 13


def colour(label: int) -> tuple[int, int, int]:
    """Mean red, green and blue of images of class ``label``, distinct and far from black and white."""
    return 50 + label * 37 % 150, 60 + label * 59 % 130, 70 + label * 83 % 110


def image_tree(root: Path, classes: int = 4, images: int = 4, texture: int = 40, grain: int = 10, part: str = "train") -> Path:
    """``root``/``part`` with ``classes`` folders of ``images`` JPEGs of 80 x 60 pixels.

    Each is noise of ``texture`` levels in grains of ``grain`` pixels around the colour of its class.
    """
    rng = np.random.default_rng(0)
    for label in range(classes):
        folder = root / part / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in range(images):
            coarse = np.asarray(colour(label)) + rng.integers(-texture, texture + 1, (60 // grain, 80 // grain, 3))
            Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize((80, 60), Image.Resampling.BICUBIC).save(
                folder / f"{number}.JPEG", quality=95
            )
    return root


def truncate(file: Path) -> None:
    """Truncate ``file`` to its first half."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def cifar10(root: Path) -> Path:
    """``root``/cifar-10-batches-py with six batches of random pixels, one held out; image number n has the label n mod 10."""
    rng = np.random.default_rng(0)
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pickled(folder / name, rng.integers(0, 256, (CIFAR10_BATCH, 3072), dtype=np.uint8))
    return root


def pickled(file: Path, pixels: np.ndarray, labels: list[int] | None = None, key: bytes = b"labels") -> None:
    """``pixels`` as a python batch with their labels under ``key``; without any, image number n has the label n mod 10."""
    batch = {b"data": pixels, key: [number % 10 for number in range(len(pixels))] if labels is None else labels}
    file.write_bytes(pickle.dumps(batch, protocol=2))


def mnist(root: Path, packed: bool = True) -> Path:
    """``root``/MNIST/raw with random pixels; image number n has the label n mod 10."""
    rng = np.random.default_rng(0)
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", MNIST_IMAGES), ("t10k", MNIST_HELD_OUT)):
        idx(folder / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (count, 28, 28)), packed)
        idx(folder / f"{part}-labels-idx1-ubyte", np.arange(count) % 10, packed)
    return root


def idx(file: Path, values: np.ndarray, packed: bool = False) -> Path:
    """Write ``values`` as an IDX file of bytes, gzipped with suffix .gz if ``packed``."""
    header = bytes((0, 0, 8, values.ndim)) + b"".join(length.to_bytes(4, "big") for length in values.shape)
    content = header + values.astype(np.uint8).tobytes()
    target = file.with_name(f"{file.name}.gz") if packed else file
    target.write_bytes(gzip.compress(content, 1) if packed else content)
    return target
