"""The datasets that fit in memory, by name: their sizes and how to read them. Torch-free."""

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
"""Folder names in CIFAR-100's archives."""


@dataclass(frozen=True, kw_only=True)
class DatasetFiles:
    """A dataset in files; its images are ``side`` x ``side`` pixels.

    ``files`` lists the files of a split in a folder, empty if it is missing; ``read`` reads them; ``layout`` describes the required
    files.
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
    """The training set, generated if ``directory`` is None.

    Raises UsageError naming the file that cannot be read.
    """
    return _read(dataset, directory, "train")


def load_held_out(dataset: str, directory: str | None) -> InMemoryDataset | None:
    """The held-out set, read like ``load_train``; None if ``directory`` has none.

    For the disc these are the training points.
    """
    if directory and dataset in DATASET_FILES and not DATASET_FILES[dataset].files(directory, "held-out"):
        return None
    return _read(dataset, directory, "held-out")


def check_dataset(dataset: str, directory: str | None, classes: int) -> int:
    """Number of training samples, after reading both splits.

    Nothing is generated for it. Raises UsageError naming the folder or file.
    """
    if dataset == "disc":
        if directory:
            raise UsageError("the points of the disc are generated; --data-dir is not read", "drop --data-dir")
        return POINTS
    dataset_files, title = DATASET_FILES[dataset], DATASETS[dataset].title
    if classes < dataset_files.classes:
        raise UsageError(f"{title} has {dataset_files.classes} classes, but the model has {classes}", "use another workload")
    if directory is None:
        return arrays.GENERATED[dataset].images["train"]
    if not dataset_files.files(directory, "train"):
        raise UsageError(_missing_message(title, directory), dataset_files.layout)
    load_held_out(dataset, directory)
    return len(load_train(dataset, directory).labels)


def detect_dataset(directory: str) -> str | None:
    """Title of the dataset in ``directory``, judging by file names; None if unknown."""
    for dataset, dataset_files in DATASET_FILES.items():
        if dataset_files.files(directory, "train"):
            return DATASETS[dataset].title
    root = Path(directory)
    return "CIFAR-100" if any(map(_is_cifar100, (root, *(root / name for name in CIFAR100_FOLDERS)))) else None


def _is_cifar100(folder: Path) -> bool:
    """Whether ``folder`` holds CIFAR-100.

    Its python and binary versions have one file per split. A lone training file counts only in a folder named in CIFAR100_FOLDERS.
    """
    names = {name for name in ("train", "test", "meta", "train.bin", "test.bin") if (folder / name).is_file()}
    return bool(names & {"train", "train.bin"}) and (len(names) > 1 or folder.name in CIFAR100_FOLDERS)


@lru_cache(maxsize=2)  # both splits of one dataset, so that a loader reuses what a check has read
def _read(dataset: str, directory: str | None, part: Split) -> InMemoryDataset:
    if dataset == "disc":
        return points()
    if not directory:
        return arrays.generate_images(dataset, part)
    found = DATASET_FILES[dataset].read(directory, part)
    return replace(found, generated=True) if is_generated(directory) else found


def _missing_message(title: str, directory: str) -> str:
    if not Path(directory).is_dir():
        return f"'{directory}' is not a folder" if Path(directory).exists() else f"no such folder: '{directory}'"
    other = detect_dataset(directory)
    return f"'{directory}' contains {other}, but this workload trains on {title}" if other else f"no {title} in '{directory}'"


POINTS, CLASSES = 1000, 2


def points() -> InMemoryDataset:
    """The same points on every machine, uniform in [0, 1]^2, then standardised.

    The label is 1 within sqrt(1 / (2 pi)) of the origin. The published text does not state the centre of the disc. With the centre at the
    origin, an eighth of the points are inside, which fits the published error of a network that only predicts the majority class, 13.1%.
    With the centre of the square it would be half.
    """
    import numpy as np

    sampled = np.random.RandomState(0).random_sample((POINTS, 2))  # its stream is fixed for all numpy versions, unlike Generator's
    inside = (sampled**2).sum(1) < 1 / (2 * pi)
    standardised = (sampled - sampled.mean(0)) / sampled.std(0)
    return InMemoryDataset(standardised.astype(np.float32), inside.astype(np.int64), "disc")
