"""``--download``: torchvision downloads a dataset, once per folder for all ranks."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from ddpbench.data.datasets.files import DATASET_FILES, DatasetFiles
from ddpbench.data.in_memory import SPLITS
from ddpbench.machine.file_lock import exclusive_lock
from ddpbench.record.errors import UsageError
from ddpbench.record.packages import require_modules
from ddpbench.record.registry import DATASETS

_TORCHVISION_CLASS = {"cifar10": "CIFAR10", "mnist": "MNIST"}
"""Class names in torchvision.datasets."""


def download_dataset(dataset: str, directory: str | None) -> None:
    """Download ``dataset`` into ``directory``, unless both splits are there.

    All processes of all nodes may call this at the same time: one downloads, the others wait. The dataset appears under its final name
    only when it is complete. Raises UsageError if it cannot be downloaded.
    """
    if dataset not in DATASET_FILES:
        raise UsageError(
            f"--download supports {' and '.join(DATASETS[each].title for each in DATASET_FILES)}, not {dataset}", "drop --download"
        )
    if directory is None:
        raise UsageError("--download needs a target folder", "add --data-dir DIR")
    dataset_files = DATASET_FILES[dataset]
    if _is_complete(dataset_files, directory):
        return
    require_modules("--download", "torchvision")
    try:
        with exclusive_lock(Path(directory)):
            if not _is_complete(dataset_files, directory):
                with TemporaryDirectory(dir=directory, prefix=".ddpbench-") as unfinished:
                    _download_with_torchvision(dataset, unfinished)
                    _move(Path(unfinished), Path(directory))
    except OSError as problem:
        raise UsageError(f"cannot write to '{directory}': {problem.strerror}", "choose another folder") from problem


def _is_complete(dataset_files: DatasetFiles, directory: str) -> bool:
    return all(dataset_files.files(directory, part) for part in SPLITS)


def _move(source: Path, target: Path) -> None:
    """Move all of ``source`` into ``target``.

    A folder is moved by one rename, or file by file if it exists in ``target``.
    """
    for path in source.iterdir():
        target_path = target / path.name
        if path.is_dir() and target_path.is_dir():
            _move(path, target_path)
        else:
            path.replace(target_path)


def _download_with_torchvision(dataset: str, directory: str) -> None:
    from torchvision import datasets  # takes seconds to import, and only a download needs it

    try:
        with redirect_stdout(sys.stderr):  # stdout may carry the record
            getattr(datasets, _TORCHVISION_CLASS[dataset])(directory, download=True)
    except Exception as problem:  # urllib, ssl, tarfile and torchvision itself each raise their own
        lines = str(problem).strip().splitlines()
        raise UsageError(
            f"cannot download {DATASETS[dataset].title}: {lines[-1] if lines else type(problem).__name__}",
            "check the network, or copy the files to --data-dir; without --download and --data-dir a generated dataset is used",
        ) from problem
