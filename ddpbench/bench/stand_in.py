"""The set that stands for ImageNet where images are read and nobody says which: made once a node, in the cache folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from ddpbench.data import registry as loaders
from ddpbench.data.generated.cache import cache_folder
from ddpbench.data.generated.folder import make
from ddpbench.data.generated.registry import stand_in
from ddpbench.record.resolved import Settled
from ddpbench.report.progress import counting
from ddpbench.workloads import registry as workloads


def with_images(arms: Sequence[Settled], world_size: int, quiet: bool) -> list[Settled]:
    """The arms, those that read image folders and name none with the made set's; all of them read the same.

    It has a batch of every rank at least. Every rank may ask at the same time: one of a node makes it, and tells on stderr
    unless it is to be ``quiet``, and the others wait. Raises UsageError where it cannot be written.
    """
    bare = [arm for arm in arms if _reads_images_of_none(arm)]
    if not bare:
        return list(arms)
    needed = max(arm.batch_size for arm in bare) * world_size
    classes = min(workloads.find(arm.workload).classes for arm in bare)
    made = stand_in(needed, classes, cuda=any(arm.device == "cuda" for arm in bare))
    folder = cache_folder() / made.name
    with counting(None if quiet else sys.stderr, f"making {made.title}, in '{folder}'", made.images + made.held_out, "images") as tell:
        make(folder, made, tell)
    return [msgspec.structs.replace(arm, data_dir=str(folder)) if _reads_images_of_none(arm) else arm for arm in arms]


def _reads_images_of_none(arm: Settled) -> bool:
    spec = loaders.find(arm.loader)
    return spec.reads_files and not spec.own and arm.data_dir is None and workloads.find(arm.workload).dataset == "imagenet"
