"""Held-out data: each rank reads its shard once, without augmentation."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.datasets import files, image_folder
from ddpbench.data.datasets.image_folder import ImageFolderIndex
from ddpbench.data.datasets.samples import ImageFolderDataset
from ddpbench.data.device_copy import DeviceLoader
from ddpbench.data.in_memory import InMemoryDataset
from ddpbench.data.loader import Batch
from ddpbench.data.loaders.workers import DataLoaderAdapter, make_data_loader
from ddpbench.data.normalize import make_normalize, to_memory_format
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loaders import find_loader


def held_out_batches(config: ResolvedConfig, shard: Shard) -> Iterator[Batch] | None:
    """Batches of this rank's shard of the held-out set, on its device.

    They are normalised as in training, never augmented. The shards partition the set: each sample occurs once, shard sizes differ by at
    most one sample, and the last batch may be smaller. The disc has no held-out set and uses its training points. None if there is no
    held-out set: for synthetic batches, matrices, a folder without one, or a user-defined loader without a folder in our layout.
    """
    loader = find_loader(config.loader)
    if shard.dataset == "gemm" or not loader.reads_dataset or (loader.user_defined and not config.data_dir):
        return None
    if shard.dataset == "imagenet":
        assert config.data_dir, "checked"
        if loader.user_defined and not image_folder.has_held_out(config.data_dir):
            return None
        tree = image_folder.read_held_out_index(config.data_dir)
        return None if tree is None else _image_batches(tree, config, shard)
    arrays = files.load_held_out(shard.dataset, config.data_dir)
    return None if arrays is None else _array_batches(arrays, config, shard)


def _image_batches(index: ImageFolderIndex, config: ResolvedConfig, shard: Shard) -> Iterator[Batch]:
    from ddpbench.data.loaders.torch import PilTransform  # imports torchvision, which other datasets do not need

    assert config.image_size, "image workloads have an image size"
    indices = range(len(index.files))[shard.as_slice]
    batches = [list(indices[start : start + config.batch_size]) for start in range(0, len(indices), config.batch_size)]
    watch = Stopwatch()
    samples = ImageFolderDataset(index, PilTransform(config.image_size, augment=False), watch, config.skip_bad)
    workers = DataLoaderAdapter(
        make_data_loader(samples, batches, watch, config, config.seed + shard.rank, shard.device),
        index.describe("torch"),
        lambda images: to_memory_format(images, config.channels_last),
        config.skip_bad,
    )
    device_loader = DeviceLoader(workers, shard.device)
    try:
        for _ in batches:
            yield device_loader.next_batch(lambda: None)
    finally:
        device_loader.close()


def _array_batches(arrays: InMemoryDataset, config: ResolvedConfig, shard: Shard) -> Iterator[Batch]:
    normalize = make_normalize(shard.dataset, config.image_size, config.channels_last, shard.device)
    samples, labels = (torch.from_numpy(array[shard.as_slice].copy()) for array in (arrays.samples, arrays.labels))
    for sample_batch, label_batch in zip(samples.split(config.batch_size), labels.split(config.batch_size), strict=True):
        yield normalize(sample_batch.to(shard.device)), label_batch.to(shard.device)
