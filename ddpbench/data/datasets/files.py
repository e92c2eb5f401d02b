"""The datasets that fit in memory, by name: their sizes and how they are read. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import pi
from pathlib import Path

from ddpbench.data.datasets import cifar10, mnist
from ddpbench.data.generated import arrays
from ddpbench.data.generated.folder import is_generated
from ddpbench.data.in_memory import InMemoryDataset, Split
from ddpbench.record.errors import UsageError
from ddpbench.record.registry import DATASETS

CIFAR100_FOLDERS = ("cifar-100-python", "cifar-100-binary")
"""The folders that its archives hold."""


@dataclass(frozen=True, kw_only=True)
class DatasetFiles:
    """A data set in files, of images ``side`` pixels a side.

    ``files`` are those of a part below a folder, none where it is not there; ``read`` reads them. ``layout`` says what is needed.
    """

    side: int
    classes: int
    layout: str
    files: Callable[[str, Split], list[Path]]
    read: Callable[[str, Split], InMemoryDataset]


DATASET_FILES: Mapping[str, DatasetFiles] = {
    "cifar10": DatasetFiles(
        side=cifar10.SIDE,
        classes=cifar10.CLASSES,
        layout=cifar10.LAYOUT,
        files=cifar10.files,
        read=cifar10.read,
    ),
    "mnist": DatasetFiles(
        side=mnist.SIDE,
        classes=mnist.CLASSES,
        layout=mnist.LAYOUT,
        files=mnist.files,
        read=mnist.read,
    ),
}


def load_train(dataset: str, directory: str | None) -> InMemoryDataset:
    """The training set, made here where no ``directory`` is named. Raises UsageError naming the file that cannot be read."""
    return _read(dataset, directory, "train")


def load_held_out(dataset: str, directory: str | None) -> InMemoryDataset | None:
    """The held-out set, as ``train`` reads it; None where ``directory`` has none. The disc's are the training points themselves."""
    if directory and dataset in DATASET_FILES and not DATASET_FILES[dataset].files(directory, "held-out"):
        return None
    return _read(dataset, directory, "held-out")


def check_dataset(dataset: str, directory: str | None, classes: int) -> int:
    """How many training samples there are, after both parts were read. Raises UsageError naming the folder or the file.

    A made set is not made for it.
    """
    if dataset == "disc":
        if directory:
            raise UsageError("the disc's points are drawn here, and no folder is read", "leave out --data-dir")
        return POINTS
    found, title = DATASET_FILES[dataset], DATASETS[dataset].title
    if classes < found.classes:
        raise UsageError(f"{title} has {found.classes} classes and the model {classes}", "use another workload")
    if directory is None:
        return arrays.GENERATED[dataset].images["train"]
    if not found.files(directory, "train"):
        raise UsageError(_missing_message(title, directory), found.layout)
    load_held_out(dataset, directory)
    return len(load_train(dataset, directory).labels)


def detect_dataset(directory: str) -> str | None:
    """The set, by its title, whose files lie in ``directory``, as far as their names tell."""
    for dataset, found in DATASET_FILES.items():
        if found.files(directory, "train"):
            return DATASETS[dataset].title
    root = Path(directory)
    return "CIFAR-100" if any(map(_is_cifar100, (root, *(root / name for name in CIFAR100_FOLDERS)))) else None


def _is_cifar100(folder: Path) -> bool:
    """Its python and its binary version are a file of each part; ``train`` is no telling name where it is alone."""
    names = {name for name in ("train", "test", "meta", "train.bin", "test.bin") if (folder / name).is_file()}
    return bool(names & {"train", "train.bin"}) and (len(names) > 1 or folder.name in CIFAR100_FOLDERS)


@lru_cache(maxsize=2)  # both parts of one set: what a check has read, a loader need not read again
def _read(dataset: str, directory: str | None, part: Split) -> InMemoryDataset:
    if dataset == "disc":
        return points()
    if not directory:
        return arrays.generate_images(dataset, part)
    found = DATASET_FILES[dataset].read(directory, part)
    return (
        replace(found, description=arrays.describe_generated(dataset, len(found.labels)), generated=True)
        if is_generated(directory)
        else found
    )


def _missing_message(title: str, directory: str) -> str:
    if not Path(directory).is_dir():
        return f"'{directory}' is no folder" if Path(directory).exists() else f"there is no folder '{directory}'"
    other = detect_dataset(directory)
    return f"'{directory}' holds {other}, and this workload trains on {title}" if other else f"no {title} in '{directory}'"


POINTS, CLASSES = 1000, 2


def points() -> InMemoryDataset:
    """The same points on every machine, uniform in [0, 1]^2 and then standardised; label 1 within sqrt(1 / (2 pi)) of the origin.

    The published text does not say where the disc has its centre. In the origin, an eighth of the points are inside; so fits
    the published error of a net that only ever names the majority, 13.1%. In the middle of the square it would be half.
    """
    import numpy as np

    drawn = np.random.RandomState(0).random_sample((POINTS, 2))  # its numbers are fixed for good, which those of Generator are not
    inside = (drawn**2).sum(1) < 1 / (2 * pi)
    standardised = (drawn - drawn.mean(0)) / drawn.std(0)
    return InMemoryDataset(standardised.astype(np.float32), inside.astype(np.int64), f"{POINTS:,} points in and around a disc")
