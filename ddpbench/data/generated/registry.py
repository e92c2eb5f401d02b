"""The datasets that can be generated, by the dataset that each stands in for."""

from __future__ import annotations

from ddpbench.data.generated.arrays import CLASSES, GENERATED
from ddpbench.data.generated.files import generated_files
from ddpbench.data.generated.folder import GeneratedDataset
from ddpbench.data.generated.image_tree import generated_image_folder
from ddpbench.record.errors import UsageError
from ddpbench.record.registry import DATASETS

GPU_SIZE, CPU_SIZE = (12_800, 100), (512, 16)
"""Default images and classes of the ImageNet stand-in, for GPU ranks and for CPU ranks."""


def generated_dataset(dataset: str, images: int | None = None, classes: int | None = None) -> GeneratedDataset:
    """The generated dataset that stands in for ``dataset``.

    It has the default size, or ``images`` training images. Raises UsageError if there are fewer images than classes, or more classes than
    in ``dataset``.
    """
    max_classes = None if dataset == "imagenet" else CLASSES
    default = GPU_SIZE if dataset == "imagenet" else (GENERATED[dataset].images["train"], CLASSES)
    images, classes = images or default[0], classes or min(default[1], images or default[0])
    if images < classes:
        raise UsageError(f"{images:,} images are too few for {classes:,} classes", "increase --images, or reduce --classes")
    if max_classes and classes > max_classes:
        raise UsageError(f"{DATASETS[dataset].title} has {max_classes} classes, not {classes:,}", f"set --classes to at most {max_classes}")
    return generated_image_folder(images, classes) if dataset == "imagenet" else generated_files(dataset, images, classes)


def default_imagenet(samples: int, classes: int, cuda: bool) -> GeneratedDataset:
    """The ImageNet stand-in for runs without a data folder.

    It has at least ``samples`` images and at most ``classes`` classes.
    """
    images, default_classes = GPU_SIZE if cuda else CPU_SIZE
    while images < samples:
        images *= 2
    return generated_image_folder(images, min(default_classes, classes))
