"""CIFAR-10's python batches, as torchvision lays them out: DIR/cifar-10-batches-py/data_batch_1 to 5, or the batches in DIR itself."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpbench.record.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CLASSES = 10
SIDE = 32


@dataclass(frozen=True)
class Cifar10:
    """The training set: ``images`` uint8 (N, 32, 32, 3), one label each."""

    images: npt.NDArray[np.uint8]
    labels: list[int]

    @property
    def description(self) -> str:
        return f"CIFAR-10, {len(self.labels):,} images"


def read(directory: str) -> Cifar10:
    """Every training batch below ``directory``. Raises UsageError naming the file that is no CIFAR-10 batch."""
    import numpy as np

    batches = [_unpickle(file) for file in batch_files(directory)]
    pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, SIDE, SIDE)
    return Cifar10(np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), [label for batch in batches for label in batch[b"labels"]])


def count(directory: str, classes: int, enough: int) -> int:
    """How many training images ``directory`` holds, counted batch by batch up to ``enough``. Raises UsageError."""
    files = batch_files(directory)
    if not files:
        where = f"no CIFAR-10 python batches in '{directory}'" if Path(directory).is_dir() else f"there is no folder '{directory}'"
        raise UsageError(where, "DIR/cifar-10-batches-py/data_batch_1 to 5 are needed, as torchvision.datasets.CIFAR10 lays them out")
    if classes < CLASSES:
        raise UsageError(f"CIFAR-10 has {CLASSES} classes and the model {classes}", "use another workload")
    found = 0
    for file in files:
        found += len(_unpickle(file)[b"labels"])
        if found >= enough:
            break
    return found


def batch_files(directory: str) -> list[Path]:
    """The training batches below ``directory``, in order; empty where there are none."""
    root = Path(directory)
    return sorted((root / "cifar-10-batches-py").glob("data_batch_[0-9]")) or sorted(root.glob("data_batch_[0-9]"))


def _unpickle(file: Path) -> dict[bytes, Any]:
    try:
        batch: dict[bytes, Any] = pickle.loads(file.read_bytes(), encoding="bytes")
        if batch[b"data"].shape != (len(batch[b"labels"]), 3 * SIDE * SIDE):
            raise ValueError("its pixels and labels do not fit together")
    except Exception as problem:  # a damaged pickle raises nearly anything
        raise UsageError(f"'{file}' is no CIFAR-10 batch: {problem}", "fetch the data set again") from problem
    return batch
