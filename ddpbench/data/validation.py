"""Held-out data: every rank sees its share once, as it is."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ddpbench.data import folder, sets
from ddpbench.data.arrays import Arrays
from ddpbench.data.catalogue import find
from ddpbench.data.folder import ImageTree
from ddpbench.data.loader import Batch
from ddpbench.data.pixels import finisher
from ddpbench.data.samples import TreeSamples, tree_transform
from ddpbench.data.workers import Workers, data_loader
from ddpbench.record.config import Config
from ddpbench.record.record import Data


def held_out(config: Config, dataset: str, classes: int, rank: int, world_size: int, device: torch.device) -> Iterator[Batch] | None:
    """Batches on ``device`` of the share of the held-out set that is ``rank``'s, normalised as in training, never augmented.

    The ranks' shares add up to the set, each sample once; they differ by one sample at most, and the last batch is what is
    left. The disc has nothing held out, and gives its training points. None where there is no such set: synthetic batches,
    or a folder without it.
    """
    if not find(config.loader or "").reads_files:
        return None
    if dataset == "imagenet":
        assert config.data_dir, "checked"
        tree = folder.read_held_out(config.data_dir)
        return None if tree is None else _decoded(tree, config, rank, world_size, device)
    arrays = sets.held_out(dataset, config.data_dir)
    return None if arrays is None else _from_memory(arrays, config, dataset, rank, world_size, device)


def _decoded(tree: ImageTree, config: Config, rank: int, world_size: int, device: torch.device) -> Iterator[Batch]:
    assert config.batch_size, "settled"
    assert config.image_size, "settled"
    own = range(rank, len(tree.files), world_size)
    batches = [list(own[start : start + config.batch_size]) for start in range(0, len(own), config.batch_size)]
    samples = TreeSamples(tree, tree_transform(config.image_size, augment=False))
    workers = Workers(
        data_loader(samples, batches, config, rank, device),
        Data(loader="torch", description=tree.description),
        config.channels_last,
        device,
    )
    try:
        for _ in batches:
            yield workers.next_batch(lambda: None)
    finally:
        workers.close()


def _from_memory(arrays: Arrays, config: Config, dataset: str, rank: int, world_size: int, device: torch.device) -> Iterator[Batch]:
    finish = finisher(dataset, config.image_size, config.channels_last, device)
    samples, labels = (torch.from_numpy(array[rank::world_size].copy()) for array in (arrays.samples, arrays.labels))
    for some, their in zip(samples.split(config.batch_size or 1), labels.split(config.batch_size or 1), strict=True):
        yield finish(some.to(device)), their.to(device)
