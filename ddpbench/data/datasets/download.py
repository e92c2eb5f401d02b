"""``--download``: torchvision fetches a data set into a folder, once a folder however many ranks ask."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from ddpbench.data.datasets.files import DATASET_FILES, DatasetFiles
from ddpbench.data.in_memory import SPLITS
from ddpbench.machine.file_lock import exclusive_lock
from ddpbench.record.errors import UsageError
from ddpbench.record.registry import DATASETS

_TORCHVISION_CLASS = {"cifar10": "CIFAR10", "mnist": "MNIST"}
"""What torchvision.datasets calls each."""


def download_dataset(dataset: str, directory: str | None) -> None:
    """Fetches ``dataset`` into ``directory``, unless both of its parts are there. Raises UsageError where it cannot be had.

    Every process of every node may call this at the same time: one fetches, the others wait for it. It comes into being under its
    name when all of it is there.
    """
    if dataset not in DATASET_FILES:
        raise UsageError(
            f"--download fetches {' and '.join(DATASETS[each].title for each in DATASET_FILES)}, not {dataset}", "leave it out"
        )
    if directory is None:
        raise UsageError("--download needs a folder to fetch into", "add --data-dir DIR")
    found = DATASET_FILES[dataset]
    if _is_complete(found, directory):
        return
    try:
        with exclusive_lock(Path(directory)):
            if not _is_complete(found, directory):
                with TemporaryDirectory(dir=directory, prefix=".ddpbench-") as unfinished:
                    _download_with_torchvision(dataset, unfinished)
                    _move(Path(unfinished), Path(directory))
    except OSError as problem:
        raise UsageError(f"cannot write to '{directory}': {problem.strerror}", "choose another folder") from problem


def _is_complete(found: DatasetFiles, directory: str) -> bool:
    return all(found.files(directory, part) for part in SPLITS)


def _move(source: Path, target: Path) -> None:
    """Everything in ``source`` by renaming it: a folder in one go, unless there is one, which then has each file of it."""
    for each in source.iterdir():
        place = target / each.name
        if each.is_dir() and place.is_dir():
            _move(each, place)
        else:
            each.replace(place)


def _download_with_torchvision(dataset: str, directory: str) -> None:
    from torchvision import datasets  # seconds of import, which only a download needs here

    try:
        with redirect_stdout(sys.stderr):  # stdout may be where the record goes
            getattr(datasets, _TORCHVISION_CLASS[dataset])(directory, download=True)
    except Exception as problem:  # urllib, ssl, tarfile and torchvision itself each raise their own
        why = str(problem).strip().splitlines()
        raise UsageError(
            f"cannot fetch {DATASETS[dataset].title}: {why[-1] if why else type(problem).__name__}",
            "is there a network here? else lay the files into --data-dir by hand, or leave both out and train on a made set",
        ) from problem
