"""Made images in the files in which CIFAR-10 and MNIST are published, so that a reader of those reads them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ddpbench.data.generated import python2
from ddpbench.data.generated.arrays import CLASSES, MADE, make
from ddpbench.data.generated.folder import MadeSet
from ddpbench.data.in_memory import Arrays, Part
from ddpbench.record.datasets import DATASETS

RECIPE = 1
"""Raised whenever the same set comes out other."""

BATCHES = 5
"""Files of CIFAR-10 that hold images to train on."""


def made_files(dataset: str, images: int, classes: int) -> MadeSet:
    """``images`` to train on, in the files of ``dataset``, and as large a share held out as the real set has."""
    shape, known = MADE[dataset], DATASETS[dataset]
    held_out = -(-images * shape.images["held-out"] // shape.images["train"])
    return MadeSet(
        name=f"{dataset}-{images}x{classes}-recipe{RECIPE}",
        title=f"{images:,} images of {classes} classes in the shape of {known.title}",
        images=images,
        held_out=held_out,
        classes=classes,
        files={"cifar10": BATCHES + 2, "mnist": 4}[dataset],
        size=(images + held_out) * (shape.side * shape.side * known.channels + 1),
        write=partial(_write, dataset, images, held_out, classes),
    )


def _write(dataset: str, images: int, held_out: int, classes: int, folder: Path, tell: Callable[[int], None]) -> None:
    done = 0
    contents: Callable[[Part, Arrays], Iterator[File]] = {"cifar10": _python_batches, "mnist": _idx_files}[dataset]
    counts: dict[Part, int] = {"train": images, "held-out": held_out}
    for part, count in counts.items():
        for name, content, inside in contents(part, make(dataset, part, count, classes)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            done += inside
            tell(done)


File = tuple[str, bytes, int]
"""Its path, its content, and how many images are done with it."""


def _python_batches(part: Part, arrays: Arrays) -> Iterator[File]:
    import numpy as np

    names = [f"data_batch_{number + 1}" for number in range(BATCHES)] if part == "train" else ["test_batch"]
    rows = arrays.samples.transpose(0, 3, 1, 2).reshape(len(arrays.labels), -1)
    for name, numbers in zip(names, np.array_split(np.arange(len(rows)), len(names)), strict=True):
        batch = {
            "batch_label": f"made {part} batch, {name}",
            "labels": arrays.labels[numbers].tolist(),
            "data": rows[numbers],
            "filenames": [f"made_{number:06d}.png" for number in numbers],
        }
        yield f"cifar-10-batches-py/{name}", python2.dumps(batch), len(numbers)
    if part == "train":
        meta = {"num_cases_per_batch": len(rows) // BATCHES, "label_names": [f"made{label}" for label in range(CLASSES)]}
        yield "cifar-10-batches-py/batches.meta", python2.dumps({**meta, "num_vis": rows.shape[1]}), 0


def _idx_files(part: Part, arrays: Arrays) -> Iterator[File]:
    prefix = {"train": "train", "held-out": "t10k"}[part]
    for kind, values in (("images-idx3", arrays.samples[..., 0]), ("labels-idx1", arrays.labels)):
        header = bytes((0, 0, 8, values.ndim)) + b"".join(length.to_bytes(4, "big") for length in values.shape)
        packed = gzip.compress(header + values.astype("uint8").tobytes(), compresslevel=1, mtime=0)
        yield f"MNIST/raw/{prefix}-{kind}-ubyte.gz", packed, len(values) if kind == "labels-idx1" else 0
