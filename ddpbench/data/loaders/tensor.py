"""The loader ``tensor``: the whole data set lies on the device, and a batch is a few kernels."""

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
    """Images as uint8, a quarter of their size in training; points in float32. CIFAR-10 is cropped and flipped, if asked for."""
    arrays = files.load_train(shard.dataset, config.data_dir)
    samples, labels = (torch.from_numpy(array).to(shard.device) for array in (arrays.samples, arrays.labels))
    view: Tensor | CropAndFlip = samples
    if config.augment and shard.dataset == "cifar10":
        view = CropAndFlip(samples, torch.Generator(shard.device).manual_seed(config.seed + shard.rank))
    plan = DistributedBatchSampler(len(labels), config.batch_size, shard.rank, shard.world_size, config.seed, config.shuffle)
    order, finish = IndexStream(plan, shard.device), make_normalize(shard.dataset, config.image_size, config.channels_last, shard.device)
    return DeviceResidentLoader(view, labels, order, config.batch_size, finish, arrays.describe("tensor"))


BATCHES_PER_GATHER = 8
"""Batches that are made at once: a small model takes less time for a step than the host for the kernels of a batch."""


class IndexStream:
    """The plan's sample numbers, on the device: uploaded an epoch at a time, so that no step waits for a copy."""

    def __init__(self, sampler: DistributedBatchSampler, device: torch.device) -> None:
        self._epochs, self._device = sampler.epoch_indices(), device
        self._buffered = torch.empty(0, dtype=torch.int64, device=device)

    def next_indices(self, num_samples: int) -> Tensor:
        """The numbers (``num_samples``,) of the samples that come next."""
        while len(self._buffered) < num_samples:
            epoch = next(self._epochs)
            if self._device.type == "cuda":
                epoch = epoch.pin_memory()
            self._buffered = torch.cat([self._buffered, epoch.to(self._device, non_blocking=True)])
        numbers, self._buffered = self._buffered[:num_samples], self._buffered[num_samples:]
        return numbers


class DeviceResidentLoader(NoWorkersMixin):
    """Batches out of the device's own memory, made on the compute stream, which the host never waits for."""

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
