"""Generated images in the file formats of CIFAR-10 and MNIST."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from pickletools import opcodes
from typing import Any

from ddpbench.data.generated.arrays import CLASSES, GENERATED, generate_images
from ddpbench.data.generated.folder import GeneratedDataset
from ddpbench.data.in_memory import InMemoryDataset, Split
from ddpbench.record.registry import DATASETS

FILES_VERSION = 1
"""Increased whenever the content of the generated files changes."""

TRAIN_BATCH_FILES = 5
"""Number of CIFAR-10's training files."""


def generated_files(dataset: str, images: int, classes: int) -> GeneratedDataset:
    """``images`` training images, in the file format of ``dataset``.

    The held-out split is the same fraction as in the original dataset.
    """
    style, spec = GENERATED[dataset], DATASETS[dataset]
    held_out = -(-images * style.images["held-out"] // style.images["train"])
    return GeneratedDataset(
        name=f"{dataset}-{images}x{classes}-recipe{FILES_VERSION}",
        title=f"{images:,} {spec.title}-like images of {classes} classes",
        train_images=images,
        held_out_images=held_out,
        classes=classes,
        num_files={"cifar10": TRAIN_BATCH_FILES + 2, "mnist": 4}[dataset],
        size_bytes=(images + held_out) * (style.side * style.side * spec.channels + 1),
        write=partial(_write, dataset, images, held_out, classes),
    )


def _write(dataset: str, images: int, held_out: int, classes: int, folder: Path, on_progress: Callable[[int], None]) -> None:
    done = 0
    contents: Callable[[Split, InMemoryDataset], Iterator[GeneratedFile]] = {"cifar10": _python_batches, "mnist": _idx_files}[dataset]
    counts: dict[Split, int] = {"train": images, "held-out": held_out}
    for part, count in counts.items():
        for name, content, inside in contents(part, generate_images(dataset, part, count, classes)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            done += inside
            on_progress(done)


GeneratedFile = tuple[str, bytes, int]
"""Path, content, and number of images completed with this file."""


def _python_batches(part: Split, arrays: InMemoryDataset) -> Iterator[GeneratedFile]:
    import numpy as np

    names = [f"data_batch_{number + 1}" for number in range(TRAIN_BATCH_FILES)] if part == "train" else ["test_batch"]
    rows = arrays.samples.transpose(0, 3, 1, 2).reshape(len(arrays.labels), -1)
    for name, numbers in zip(names, np.array_split(np.arange(len(rows)), len(names)), strict=True):
        batch = {
            "batch_label": f"made {part} batch, {name}",
            "labels": arrays.labels[numbers].tolist(),
            "data": rows[numbers],
            "filenames": [f"made_{number:06d}.png" for number in numbers],
        }
        yield f"cifar-10-batches-py/{name}", dumps(batch), len(numbers)
    if part == "train":
        meta = {"num_cases_per_batch": len(rows) // TRAIN_BATCH_FILES, "label_names": [f"made{label}" for label in range(CLASSES)]}
        yield "cifar-10-batches-py/batches.meta", dumps({**meta, "num_vis": rows.shape[1]}), 0


def _idx_files(part: Split, arrays: InMemoryDataset) -> Iterator[GeneratedFile]:
    prefix = {"train": "train", "held-out": "t10k"}[part]
    for kind, values in (("images-idx3", arrays.samples[..., 0]), ("labels-idx1", arrays.labels)):
        header = bytes((0, 0, 8, values.ndim)) + b"".join(length.to_bytes(4, "big") for length in values.shape)
        packed = gzip.compress(header + values.astype("uint8").tobytes(), compresslevel=1, mtime=0)
        yield f"MNIST/raw/{prefix}-{kind}-ubyte.gz", packed, len(values) if kind == "labels-idx1" else 0


PROTOCOL = 3
CODE = {opcode.name: opcode.code.encode("latin-1") for opcode in opcodes}


def dumps(values: Mapping[str, Any]) -> bytes:
    """Pickle of a dictionary whose values are ASCII strings, lists of them, or values without strings."""
    items = b"".join(_text(key) + _value(value) for key, value in values.items())
    return b"".join([CODE["PROTO"], bytes([PROTOCOL]), CODE["EMPTY_DICT"], CODE["MARK"], items, CODE["SETITEMS"], CODE["STOP"]])


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return b"".join([CODE["EMPTY_LIST"], CODE["MARK"], *map(_text, value), CODE["APPENDS"]])
    return pickle.dumps(value, PROTOCOL)[2:-1]  # without the opcodes PROTO and STOP


def _text(text: str) -> bytes:
    content = text.encode("ascii")
    return CODE["SHORT_BINSTRING"] + bytes([len(content)]) + content
