"""The set that stands for ImageNet where images are read and nobody says which: made once a node, in the cache folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from ddpbench.data import registry as loaders
from ddpbench.data.generated.cache import cache_dir
from ddpbench.data.generated.folder import generate
from ddpbench.data.generated.registry import default_imagenet
from ddpbench.record.resolved import ResolvedConfig
from ddpbench.report.progress import count_progress
from ddpbench.workloads import registry as workloads


def with_generated_images(arms: Sequence[ResolvedConfig], world_size: int, quiet: bool) -> list[ResolvedConfig]:
    """The arms, those that read image folders and name none with the made set's; all of them read the same.

    It has a batch of every rank at least. Every rank may ask at the same time: one of a node makes it, and tells on stderr
    unless it is to be ``quiet``, and the others wait. Raises UsageError where it cannot be written.
    """
    bare = [arm for arm in arms if _needs_generated_images(arm)]
    if not bare:
        return list(arms)
    needed = max(arm.batch_size for arm in bare) * world_size
    classes = min(workloads.find_workload(arm.workload).classes for arm in bare)
    made = default_imagenet(needed, classes, cuda=any(arm.device == "cuda" for arm in bare))
    folder = cache_dir() / made.name
    with count_progress(
        None if quiet else sys.stderr, f"making {made.title}, in '{folder}'", made.train_images + made.held_out_images, "images"
    ) as tell:
        generate(folder, made, tell)
    return [msgspec.structs.replace(arm, data_dir=str(folder)) if _needs_generated_images(arm) else arm for arm in arms]


def _needs_generated_images(arm: ResolvedConfig) -> bool:
    spec = loaders.find_loader(arm.loader)
    return (
        spec.reads_dataset
        and not spec.user_defined
        and arm.data_dir is None
        and workloads.find_workload(arm.workload).dataset == "imagenet"
    )
