"""The data sets that fit in memory, by name: their size, and how they are read. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ddpbench.data.datasets import cifar10, disc, mnist
from ddpbench.data.generated import arrays
from ddpbench.data.generated.folder import is_made
from ddpbench.data.in_memory import Arrays, Part
from ddpbench.record.datasets import DATASETS
from ddpbench.record.errors import UsageError

CIFAR_100 = ("cifar-100-python", "cifar-100-binary")
"""The folders that its archives hold."""


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """A data set in files, of images ``side`` pixels a side.

    ``files`` are those of a part below a folder, none where it is not there; ``read`` reads them. ``layout`` says what is needed.
    """

    side: int
    classes: int
    layout: str
    files: Callable[[str, Part], list[Path]]
    read: Callable[[str, Part], Arrays]


FILE_SETS: Mapping[str, FileSet] = {
    "cifar10": FileSet(
        side=cifar10.SIDE,
        classes=cifar10.CLASSES,
        layout=cifar10.LAYOUT,
        files=cifar10.files,
        read=cifar10.read,
    ),
    "mnist": FileSet(
        side=mnist.SIDE,
        classes=mnist.CLASSES,
        layout=mnist.LAYOUT,
        files=mnist.files,
        read=mnist.read,
    ),
}


def train(dataset: str, directory: str | None) -> Arrays:
    """The training set, made here where no ``directory`` is named. Raises UsageError naming the file that cannot be read."""
    return _read(dataset, directory, "train")


def held_out(dataset: str, directory: str | None) -> Arrays | None:
    """The held-out set, as ``train`` reads it; None where ``directory`` has none. The disc's are the training points themselves."""
    if directory and dataset in FILE_SETS and not FILE_SETS[dataset].files(directory, "held-out"):
        return None
    return _read(dataset, directory, "held-out")


def check(dataset: str, directory: str | None, classes: int) -> int:
    """How many training samples there are, after both parts were read. Raises UsageError naming the folder or the file.

    A made set is not made for it.
    """
    if dataset == "disc":
        if directory:
            raise UsageError("the disc's points are drawn here, and no folder is read", "leave out --data-dir")
        return disc.POINTS
    found, title = FILE_SETS[dataset], DATASETS[dataset].title
    if classes < found.classes:
        raise UsageError(f"{title} has {found.classes} classes and the model {classes}", "use another workload")
    if directory is None:
        return arrays.MADE[dataset].images["train"]
    if not found.files(directory, "train"):
        raise UsageError(_absent(title, directory), found.layout)
    held_out(dataset, directory)
    return len(train(dataset, directory).labels)


def holds(directory: str) -> str | None:
    """The set, by its title, whose files lie in ``directory``, as far as their names tell."""
    for dataset, found in FILE_SETS.items():
        if found.files(directory, "train"):
            return DATASETS[dataset].title
    root = Path(directory)
    return "CIFAR-100" if any(map(_is_cifar100, (root, *(root / name for name in CIFAR_100)))) else None


def _is_cifar100(folder: Path) -> bool:
    """Its python and its binary version are a file of each part; ``train`` is no telling name where it is alone."""
    names = {name for name in ("train", "test", "meta", "train.bin", "test.bin") if (folder / name).is_file()}
    return bool(names & {"train", "train.bin"}) and (len(names) > 1 or folder.name in CIFAR_100)


@lru_cache(maxsize=2)  # both parts of one set: what a check has read, a loader need not read again
def _read(dataset: str, directory: str | None, part: Part) -> Arrays:
    if dataset == "disc":
        return disc.points()
    if not directory:
        return arrays.make(dataset, part)
    found = FILE_SETS[dataset].read(directory, part)
    return replace(found, description=arrays.description(dataset, len(found.labels)), made=True) if is_made(directory) else found


def _absent(title: str, directory: str) -> str:
    if not Path(directory).is_dir():
        return f"'{directory}' is no folder" if Path(directory).exists() else f"there is no folder '{directory}'"
    other = holds(directory)
    return f"'{directory}' holds {other}, and this workload trains on {title}" if other else f"no {title} in '{directory}'"
