"""A folder that holds a complete generated dataset, or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddpbench.machine.file_lock import exclusive_lock
from ddpbench.machine.signals import handle_signals, raise_signal_received
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import UsageError
from ddpbench.record.packages import require_modules

MARKER_FILE = ".ddpbench-made"
"""File in the folder that names its dataset."""

MAX_DEPTH = 2
"""Maximum folder depth between a dataset and its images: MNIST/raw."""

OTHER_FOLDER_HINT = "choose another folder, or set XDG_CACHE_HOME to move the cache"


@dataclass(frozen=True, kw_only=True)
class GeneratedDataset:
    """A dataset that can be generated.

    ``write`` writes it to a folder and reports the images done so far; it needs the optional ``modules``. ``name`` identifies the dataset
    and its version.
    """

    name: str
    title: str
    train_images: int
    held_out_images: int
    classes: int
    num_files: int
    size_bytes: int  # approximate
    write: Callable[[Path, Callable[[int], None]], None]
    modules: tuple[str, ...] = ()


def is_generated(directory: str) -> bool:
    """Whether ``directory`` is, or is inside, the folder of a generated dataset."""
    folder = Path(directory).absolute()
    return any((each / MARKER_FILE).is_file() for each in (folder, *folder.parents[:MAX_DEPTH]))


def holds_dataset(folder: Path, dataset: GeneratedDataset) -> bool:
    """Whether ``folder`` holds the complete ``dataset``.

    Raises UsageError if it holds other files, or cannot be read.
    """
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return False
        if (folder / MARKER_FILE).is_file() and (folder / MARKER_FILE).read_text() == dataset.name:
            return sum(len(names) for _, _, names in os.walk(folder)) > dataset.num_files  # the marker is one more file
    except OSError as problem:
        raise UsageError(f"cannot read '{folder}': {problem.strerror}", OTHER_FOLDER_HINT) from problem
    raise UsageError(f"'{folder}' contains something other than {dataset.title}", "choose another folder, or remove it")


def generate(folder: Path, dataset: GeneratedDataset, on_progress: Callable[[int], None]) -> None:
    """Generate ``dataset`` in ``folder``, unless it is there.

    One of several concurrent processes generates it, the others wait. It appears under its final name by one rename, so a reader always
    finds it complete. A dataset with missing files is generated again. Raises UsageError if ``folder`` holds other files, or cannot be
    written.
    """
    if holds_dataset(folder, dataset):
        return
    require_modules("a generated dataset", *dataset.modules)
    folder = folder.resolve()
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        with handle_signals(raise_signal_received), exclusive_lock(folder.parent):
            if not holds_dataset(folder, dataset):
                shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
                _check_free_space(folder, dataset)
                on_progress(0)
                try:
                    dataset.write(unfinished, on_progress)
                    (unfinished / MARKER_FILE).write_text(dataset.name)
                    if folder.exists():
                        shutil.rmtree(folder)
                    unfinished.rename(folder)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as problem:
        where = f": '{problem.filename}'" if problem.filename else ""
        raise UsageError(f"cannot generate {dataset.title} in '{folder}': {problem.strerror}{where}", OTHER_FOLDER_HINT) from problem


def _check_free_space(folder: Path, dataset: GeneratedDataset) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < dataset.size_bytes:
        raise UsageError(
            f"{dataset.title} need {dataset.size_bytes / 1e9:,.1f} GB, but '{folder.parent}' has {free / 1e9:,.1f} GB free",
            f"generate fewer images, {OTHER_FOLDER_HINT}",
        )


def cache_dir(variables: Mapping[str, str] = os.environ) -> Path:
    """XDG_CACHE_HOME/ddpbench, or ~/.cache/ddpbench.

    Raises UsageError if there is no home folder either.
    """
    named = variables.get(EnvVar.XDG_CACHE_HOME, "")
    if os.path.isabs(named):  # the XDG Base Directory Specification says to ignore relative paths
        return Path(named) / "ddpbench"
    try:
        return Path.home() / ".cache" / "ddpbench"
    except RuntimeError:
        raise UsageError("no home folder for the cache", "set XDG_CACHE_HOME, or choose a folder") from None
