"""Held-out data: every rank sees its share once, as it is."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ddpbench.data.datasets import files, image_folder
from ddpbench.data.datasets.image_folder import ImageTree
from ddpbench.data.datasets.samples import TreeSamples
from ddpbench.data.device_loader import Delivered
from ddpbench.data.in_memory import Arrays
from ddpbench.data.loader import Batch
from ddpbench.data.loaders.torch import StockView
from ddpbench.data.loaders.workers import Workers, data_loader
from ddpbench.data.normalize import finisher, in_layout
from ddpbench.data.registry import find
from ddpbench.data.shard import Shard
from ddpbench.data.stopwatch import Stopwatch
from ddpbench.record.resolved import Settled


def held_out(config: Settled, shard: Shard) -> Iterator[Batch] | None:
    """Batches of the rank's share of the held-out set, on its device, normalised as in training, never augmented.

    The ranks' shares add up to the set, each sample once; they differ by one sample at most, and the last batch is what is
    left. The disc has nothing held out, and gives its training points. None where there is no such set: synthetic batches,
    matrices, or a folder without it, or batches of somebody's own without a folder that is laid out as ours are.
    """
    loader = find(config.loader)
    if shard.dataset == "gemm" or not loader.reads_files or (loader.own and not config.data_dir):
        return None
    if shard.dataset == "imagenet":
        assert config.data_dir, "checked"
        if loader.own and not image_folder.has_held_out(config.data_dir):
            return None
        tree = image_folder.read_held_out(config.data_dir)
        return None if tree is None else _decoded(tree, config, shard)
    arrays = files.held_out(shard.dataset, config.data_dir)
    return None if arrays is None else _from_memory(arrays, config, shard)


def _decoded(tree: ImageTree, config: Settled, shard: Shard) -> Iterator[Batch]:
    assert config.image_size, "images have a size"
    own = range(len(tree.files))[shard.places]
    batches = [list(own[start : start + config.batch_size]) for start in range(0, len(own), config.batch_size)]
    watch = Stopwatch()
    samples = TreeSamples(tree, StockView(config.image_size, augment=False), watch, config.skip_bad)
    workers = Workers(
        data_loader(samples, batches, watch, config, config.seed + shard.rank, shard.device),
        tree.data("torch"),
        lambda images: in_layout(images, config.channels_last),
        config.skip_bad,
    )
    delivered = Delivered(workers, shard.device)
    try:
        for _ in batches:
            yield delivered.next_batch(lambda: None)
    finally:
        delivered.close()


def _from_memory(arrays: Arrays, config: Settled, shard: Shard) -> Iterator[Batch]:
    finish = finisher(shard.dataset, config.image_size, config.channels_last, shard.device)
    samples, labels = (torch.from_numpy(array[shard.places].copy()) for array in (arrays.samples, arrays.labels))
    for some, their in zip(samples.split(config.batch_size), labels.split(config.batch_size), strict=True):
        yield finish(some.to(shard.device)), their.to(shard.device)
