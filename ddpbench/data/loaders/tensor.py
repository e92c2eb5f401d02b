"""The loader ``tensor``: the whole dataset is on the device, and a batch takes a few kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddpbench.data.crop import CropAndFlip
from ddpbench.data.datasets import files
from ddpbench.data.loader import Batch, NoWorkersMixin
from ddpbench.data.normalize import make_normalize
from ddpbench.data.sampler import DistributedBatchSampler
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.record import DatasetInfo


def open_tensor(config: ResolvedConfig, shard: Shard) -> DeviceResidentLoader:
    """Open the loader ``tensor``.

    Images are stored as uint8, a quarter of their size in training; points as float32. CIFAR-10 is cropped and flipped if configured.
    """
    arrays = files.load_train(shard.dataset, config.data_dir)
    samples, labels = (torch.from_numpy(array).to(shard.device) for array in (arrays.samples, arrays.labels))
    view: Tensor | CropAndFlip = samples
    if config.augment and shard.dataset == "cifar10":
        view = CropAndFlip(samples, torch.Generator(shard.device).manual_seed(config.seed + shard.rank))
    sampler = DistributedBatchSampler(len(labels), config.batch_size, shard.rank, shard.world_size, config.seed, config.shuffle)
    indices, normalize = (
        IndexStream(sampler, shard.device),
        make_normalize(shard.dataset, config.image_size, config.channels_last, shard.device),
    )
    return DeviceResidentLoader(view, labels, indices, config.batch_size, normalize, arrays.describe("tensor"))


BATCHES_PER_GATHER = 8
"""Batches that are gathered at once.

A step of a small model takes less time than the host needs to issue the kernels of a batch.
"""


class IndexStream:
    """Sample indices on the device, copied one epoch at a time, so that no step waits for a copy."""

    def __init__(self, sampler: DistributedBatchSampler, device: torch.device) -> None:
        self._epochs, self._device = sampler.epoch_indices(), device
        self._buffered = torch.empty(0, dtype=torch.int64, device=device)

    def next_indices(self, num_samples: int) -> Tensor:
        """The next sample indices, (``num_samples``,)."""
        while len(self._buffered) < num_samples:
            epoch = next(self._epochs)
            if self._device.type == "cuda":
                epoch = epoch.pin_memory()
            self._buffered = torch.cat([self._buffered, epoch.to(self._device, non_blocking=True)])
        numbers, self._buffered = self._buffered[:num_samples], self._buffered[num_samples:]
        return numbers


class DeviceResidentLoader(NoWorkersMixin):
    """Batches from device memory, gathered on the compute stream without blocking the host."""

    def __init__(
        self,
        samples: Tensor | CropAndFlip,
        labels: Tensor,
        indices: IndexStream,
        batch_size: int,
        device_transform: Callable[[Tensor], Tensor],
        data: DatasetInfo,
    ) -> None:
        self.data = data
        self._samples, self._labels, self._indices, self._batch_size, self._device_transform = (
            samples,
            labels,
            indices,
            batch_size,
            device_transform,
        )
        self._ready: Iterator[Batch] = iter(())

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        batch = next(self._ready, None)
        if batch is None:
            numbers = self._indices.next_indices(BATCHES_PER_GATHER * self._batch_size)
            parts = (self._device_transform(self._samples[numbers]), self._labels[numbers])
            self._ready = zip(*(part.split(self._batch_size) for part in parts), strict=True)
            batch = next(self._ready)
        on_host_ready()
        return batch
