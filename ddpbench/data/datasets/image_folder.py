"""An image tree with one folder per class, like ImageNet.

Read with the standard library only.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path

from ddpbench.data.datasets import files as sets
from ddpbench.data.generated.folder import is_generated
from ddpbench.data.in_memory import raise_unreadable
from ddpbench.record.errors import UsageError
from ddpbench.record.record import DatasetInfo, FileKind

JPEG_EXTENSIONS = (".jpg", ".jpeg")
IMAGE_EXTENSIONS = (*JPEG_EXTENSIONS, ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Same extensions as torchvision's ImageFolder."""


@dataclass(frozen=True)
class ImageFolderIndex:
    """Path and class of every image of a tree; a class is the index of its folder in name order."""

    files: list[str]
    labels: list[int]
    file_kind: FileKind
    dataset: str  # "imagenet", or empty if the folders do not have ImageNet's names
    skipped_extensions: dict[str, int]
    generated: bool = False

    def describe(self, loader: str) -> DatasetInfo:
        """DatasetInfo for the loader named ``loader``."""
        return DatasetInfo(
            loader=loader,
            dataset=self.dataset,
            file_kind=self.file_kind,
            num_samples=len(self.files),
            skipped_extensions=self.skipped_extensions,
            generated=self.generated,
        )


MAX_CACHED_INDEXES = 2
"""Trees cached per process.

Listing a million images again whenever a loader is opened would take seconds.
"""

SPLIT_FOLDERS = {"train", "val", "test"}
"""Folders that hold class folders; class folders themselves only if there are others, too."""


@lru_cache(maxsize=MAX_CACHED_INDEXES)
def read_index(directory: str) -> ImageFolderIndex:
    """All images in ``directory``, in name order.

    Raises UsageError if it cannot be read, or no longer has images.
    """
    tree = _build_index(dict(enumerate(class_folders(directory))), is_generated(directory))
    if not tree.files:
        raise UsageError(f"no images in '{directory}'", "images must be in DIR/train/CLASS/ or in DIR/CLASS/")
    return tree


def index_fingerprint(directory: str) -> str:
    """Number of images that ``read_index`` finds, and a digest of their names.

    Equal on every node with the same tree, wherever the tree is stored.
    """
    tree, root = read_index(directory), str(Path(directory))
    names = sha256()
    for file in tree.files:
        names.update(os.fsencode(file.removeprefix(root).lstrip(os.sep)) + b"\0")
    return f"{len(tree.files):,} images, {names.hexdigest()[:12]}"


def has_held_out(directory: str) -> bool:
    """Whether there are class folders to train on, and images in the class folders of DIR/val."""
    return bool(_train_folders(Path(directory))) and _have_images(_folders_in(Path(directory) / "val"))


@lru_cache(maxsize=MAX_CACHED_INDEXES)
def read_held_out_index(directory: str) -> ImageFolderIndex | None:
    """All images of DIR/val, labelled as in training.

    None if its class folders have none. Raises UsageError like ``count_images``.
    """
    tree = _build_index(_held_out_folders(directory, class_folders(directory)), is_generated(directory))
    return tree if tree.files else None


def _build_index(folders: Mapping[int, Path], generated: bool) -> ImageFolderIndex:
    """All images of ``folders``, keyed by label."""
    images: list[tuple[str, int]] = []
    skipped: Counter[str] = Counter()
    for label, folder in folders.items():
        for file in _files(folder):
            if _is_image(file):
                images.append((file, label))
            else:
                skipped[Path(file).suffix.lower()] += 1
    files, labels = [file for file, _ in images], [label for _, label in images]
    kind: FileKind = "jpegs" if all(file.lower().endswith(JPEG_EXTENSIONS) for file in files) else "images"
    is_imagenet = generated or all(re.fullmatch(r"n\d{8}", folder.name) for folder in folders.values())
    return ImageFolderIndex(files, labels, kind, "imagenet" if is_imagenet else "", dict(skipped), generated)


def count_images(directory: str, classes: int, max_count: int) -> int:
    """Number of images in ``directory``, counted up to ``max_count``.

    Looks for at least one image in every class. Raises UsageError if ``directory`` is missing, has no class folders, more of them than
    the model has ``classes``, or an empty one; and if DIR/val has a class that training does not have, or no images in its class folders.
    """
    folders = class_folders(directory)
    if len(folders) > classes:
        raise UsageError(f"'{directory}' has {len(folders):,} class folders, but the model has {classes:,} outputs", "use another workload")
    held_out = _held_out_folders(directory, folders).values()
    if held_out and not _have_images(held_out):
        raise UsageError(f"no images in the class folders of '{Path(directory) / 'val'}'", "add images, or remove the folders")
    found = 0
    for folder in folders:
        count = sum(1 for _ in islice(filter(_is_image, _files(folder)), max(1, max_count - found)))
        if not count:
            others = sum(1 for _ in _files(folder))
            details = f": {others:,} other files; supported are {', '.join(IMAGE_EXTENSIONS)}" if others else ""
            hint = "add images, or remove the folder: labels are indices of the sorted folders"
            raise UsageError(f"no images in the class folder '{folder}'{details}", hint)
        found += count
    return min(found, max_count)


def class_folders(directory: str) -> list[Path]:
    """The class folders in DIR/train, or else in DIR itself, by name.

    Raises UsageError if there are none, if ``directory`` is not a folder, or if it holds another known dataset.
    """
    root = Path(directory)
    if not root.is_dir():
        raise UsageError(f"'{directory}' is not a folder" if root.exists() else f"no such folder: '{directory}'", "check --data-dir")
    folders = _train_folders(root)
    if other := sets.detect_dataset(directory):
        raise UsageError(
            f"'{directory}' contains {other}, but this workload trains on image folders", "'ddpbench list' shows all workloads"
        )
    if not folders:
        where = root / "train" if any((root / part).is_dir() for part in SPLIT_FOLDERS) else root
        raise UsageError(f"no class folders in '{where}'", "images must be in DIR/train/CLASS/ or in DIR/CLASS/")
    return folders


def _train_folders(root: Path) -> list[Path]:
    if folders := _folders_in(root / "train"):
        return folders
    folders = _folders_in(root)
    return folders if {folder.name for folder in folders} - SPLIT_FOLDERS else []


def _held_out_folders(directory: str, train_folders: Sequence[Path]) -> dict[int, Path]:
    """Class folders of DIR/val, keyed by the labels of the same names in ``train_folders``."""
    labels = {folder.name: label for label, folder in enumerate(train_folders)}
    folders = _folders_in(Path(directory) / "val")
    for folder in folders:
        if folder.name not in labels:
            raise UsageError(
                f"'{folder}' is a class that the training set does not have", "DIR/val must have the same class folders as DIR/train"
            )
    return {labels[folder.name]: folder for folder in folders}


def _folders_in(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        raise_unreadable(problem)


def _files(folder: Path) -> Iterator[str]:
    """All files in ``folder`` and its subfolders, by name.

    Hidden files are included only if they look like images: operating systems leave others behind.
    """
    for parent, folders, names in os.walk(folder, onerror=raise_unreadable, followlinks=True):
        folders.sort()
        yield from (os.path.join(parent, name) for name in sorted(names) if not name.startswith(".") or _is_image(name))


def _have_images(folders: Iterable[Path]) -> bool:
    return any(_is_image(file) for folder in folders for file in _files(folder))


def _is_image(file: str) -> bool:
    return file.lower().endswith(IMAGE_EXTENSIONS)
