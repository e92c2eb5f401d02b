"""The sets that can be made, by the data set that each stands for."""

from __future__ import annotations

from ddpbench.data.generated.arrays import CLASSES, MADE
from ddpbench.data.generated.files import made_files
from ddpbench.data.generated.folder import MadeSet
from ddpbench.data.generated.image_tree import made_tree
from ddpbench.record.datasets import DATASETS
from ddpbench.record.errors import UsageError

FULL, SMALL = (12_800, 100), (512, 16)
"""Images and classes of the set that stands for ImageNet, as it is for GPUs, and for ranks on processors."""


def made_set(dataset: str, images: int | None = None, classes: int | None = None) -> MadeSet:
    """The set that stands for ``dataset``, as large as it usually is or with so many ``images`` to train on.

    Raises UsageError where there would be no image for each class, or more classes than ``dataset`` has.
    """
    most = None if dataset == "imagenet" else CLASSES
    usual = FULL if dataset == "imagenet" else (MADE[dataset].images["train"], CLASSES)
    images, classes = images or usual[0], classes or min(usual[1], images or usual[0])
    if images < classes:
        raise UsageError(f"{images:,} images are too few for {classes:,} classes", "more --images, or fewer --classes")
    if most and classes > most:
        raise UsageError(f"{DATASETS[dataset].title} has {most} classes, and not {classes:,}", f"--classes of at most {most}")
    return made_tree(images, classes) if dataset == "imagenet" else made_files(dataset, images, classes)


def stand_in(samples: int, classes: int, cuda: bool) -> MadeSet:
    """The set that stands for ImageNet where nobody names a folder: of at least ``samples``, and at most so many ``classes``."""
    images, usual = FULL if cuda else SMALL
    while images < samples:
        images *= 2
    return made_tree(images, min(usual, classes))
