"""A tree of images with one folder a class, as ImageNet has it. Read with the standard library alone."""

from __future__ import annotations

import os
import re
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
"""Of image files, the same as torchvision's ImageFolder takes."""


@dataclass(frozen=True)
class ImageFolderIndex:
    """Every image of a tree: its path and its class, which is the place of its class folder in the order of names."""

    files: list[str]
    labels: list[int]
    file_kind: FileKind
    description: str
    generated: bool = False

    def describe(self, loader: str) -> DatasetInfo:
        """Which data a loader of that name reads here."""
        return DatasetInfo(
            loader=loader, description=self.description, file_kind=self.file_kind, images=len(self.files), generated=self.generated
        )


MAX_CACHED_INDEXES = 2
"""Trees that a process keeps: to list one of a million images anew, at every opening of a loader, would take seconds."""

MAX_LISTED_EXTENSIONS = 4
"""That are told of files that are no images."""

SPLIT_FOLDERS = {"train", "val", "test"}
"""Folders that hold class folders, and are none where nothing else is there."""


@lru_cache(maxsize=MAX_CACHED_INDEXES)
def read_index(directory: str) -> ImageFolderIndex:
    """Every image below ``directory``, in the order of names. Raises UsageError where it cannot be read, or there is none any more."""
    tree = _build_index(dict(enumerate(class_folders(directory))), is_generated(directory))
    if not tree.files:
        raise UsageError(f"no images in '{directory}'", "images must lie in DIR/train/CLASS/ or in DIR/CLASS/")
    return tree


def index_fingerprint(directory: str) -> str:
    """How many images ``read`` finds, and a digest of their names: the same on every node that has the same, wherever it lies there."""
    tree, root = read_index(directory), str(Path(directory))
    names = sha256()
    for file in tree.files:
        names.update(os.fsencode(file.removeprefix(root).lstrip(os.sep)) + b"\0")
    return f"{len(tree.files):,} images, {names.hexdigest()[:12]}"


def has_held_out(directory: str) -> bool:
    """Whether there are class folders to train on, and images in those of DIR/val."""
    return bool(_train_folders(Path(directory))) and _have_images(_folders_in(Path(directory) / "val"))


@lru_cache(maxsize=MAX_CACHED_INDEXES)
def read_held_out_index(directory: str) -> ImageFolderIndex | None:
    """Every image of DIR/val, labelled as in training; None without any in class folders. Raises UsageError as ``count`` does."""
    tree = _build_index(_held_out_folders(directory, class_folders(directory)), is_generated(directory))
    return tree if tree.files else None


def _build_index(folders: Mapping[int, Path], generated: bool) -> ImageFolderIndex:
    """Every image of the class folders, which stand under their labels; of what is passed over for its name, how many files and why."""
    images: list[tuple[str, int]] = []
    others: list[str] = []
    for label, folder in folders.items():
        for file in _files(folder):
            if _is_image(file):
                images.append((file, label))
            else:
                others.append(file)
    files, labels = [file for file, _ in images], [label for _, label in images]
    endings = sorted({Path(file).suffix.lower() or "no ending" for file in others})
    left_out = f", {len(others):,} left out ({', '.join(endings[:MAX_LISTED_EXTENSIONS])})" if others else ""
    kind: FileKind = "jpegs" if all(file.lower().endswith(JPEG_EXTENSIONS) for file in files) else "images"
    named = "ImageNet" if all(re.fullmatch(r"n\d{8}", folder.name) for folder in folders.values()) else "image"
    what = "made set in the shape of ImageNet" if generated else f"{named} folder"
    content = "JPEGs" if kind == "jpegs" else "images"
    return ImageFolderIndex(files, labels, kind, f"{what}, {len(files):,} {content}{left_out}", generated)


def count_images(directory: str, classes: int, max_count: int) -> int:
    """How many images ``directory`` holds, counted up to ``max_count``, and up to one in each class.

    Raises UsageError where it is missing, holds no class folders, or more of them than the model has ``classes``, where one of
    them is empty, or where DIR/val has one that training has not, or no image in any.
    """
    folders = class_folders(directory)
    if len(folders) > classes:
        raise UsageError(f"'{directory}' has {len(folders):,} class folders and the model {classes:,} outputs", "use another workload")
    held_out = _held_out_folders(directory, folders).values()
    if held_out and not _have_images(held_out):
        raise UsageError(f"no images in the class folders of '{Path(directory) / 'val'}'", "fill them, or take them away")
    found = 0
    for folder in folders:
        here = sum(1 for _ in islice(filter(_is_image, _files(folder)), max(1, max_count - found)))
        if not here:
            others = sum(1 for _ in _files(folder))
            why = f": {others:,} there, and none ends in {', '.join(IMAGE_EXTENSIONS)}" if others else ""
            hint = "fill it, or take it away: labels are the places of the folders"
            raise UsageError(f"no images in the class folder '{folder}'{why}", hint)
        found += here
    return min(found, max_count)


def class_folders(directory: str) -> list[Path]:
    """The class folders in DIR/train, or in DIR itself where there are none, by name. Raises UsageError."""
    root = Path(directory)
    if not root.is_dir():
        raise UsageError(f"'{directory}' is no folder" if root.exists() else f"there is no folder '{directory}'", "check --data-dir")
    folders = _train_folders(root)
    if other := sets.detect_dataset(directory):
        raise UsageError(f"'{directory}' holds {other}, and this workload trains on image folders", "'ddpbench list' shows every workload")
    if not folders:
        where = root / "train" if any((root / part).is_dir() for part in SPLIT_FOLDERS) else root
        raise UsageError(f"no class folders in '{where}'", "images must lie in DIR/train/CLASS/ or in DIR/CLASS/")
    return folders


def _train_folders(root: Path) -> list[Path]:
    if folders := _folders_in(root / "train"):
        return folders
    folders = _folders_in(root)
    return folders if {folder.name for folder in folders} - SPLIT_FOLDERS else []


def _held_out_folders(directory: str, train_folders: Sequence[Path]) -> dict[int, Path]:
    """The class folders of DIR/val under the labels that ``train_folders`` gives their names."""
    labels = {folder.name: label for label, folder in enumerate(train_folders)}
    folders = _folders_in(Path(directory) / "val")
    for folder in folders:
        if folder.name not in labels:
            raise UsageError(f"'{folder}' is a class that training has not", "DIR/val must have the class folders of DIR/train")
    return {labels[folder.name]: folder for folder in folders}


def _folders_in(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        raise_unreadable(problem)


def _files(folder: Path) -> Iterator[str]:
    """Every file below ``folder``, by name; of hidden ones those that seem to be images: systems leave others behind."""
    for parent, folders, names in os.walk(folder, onerror=raise_unreadable, followlinks=True):
        folders.sort()
        yield from (os.path.join(parent, name) for name in sorted(names) if not name.startswith(".") or _is_image(name))


def _have_images(folders: Iterable[Path]) -> bool:
    return any(_is_image(file) for folder in folders for file in _files(folder))


def _is_image(file: str) -> bool:
    return file.lower().endswith(IMAGE_EXTENSIONS)
