"""The loader ``tensor``: the whole data set lies on the device, and a batch is a few kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddpbench.data.augment import CropAndFlip
from ddpbench.data.datasets import files
from ddpbench.data.loader import Batch, Workerless
from ddpbench.data.normalize import finisher
from ddpbench.data.sampler import ShardPlan
from ddpbench.data.shard import Shard
from ddpbench.record.record import Data
from ddpbench.record.resolved import Settled


def open_tensor(config: Settled, shard: Shard) -> Resident:
    """Images as uint8, a quarter of their size in training; points in float32. CIFAR-10 is cropped and flipped, if asked for."""
    arrays = files.train(shard.dataset, config.data_dir)
    samples, labels = (torch.from_numpy(array).to(shard.device) for array in (arrays.samples, arrays.labels))
    view: Tensor | CropAndFlip = samples
    if config.augment and shard.dataset == "cifar10":
        view = CropAndFlip(samples, torch.Generator(shard.device).manual_seed(config.seed + shard.rank))
    plan = ShardPlan(len(labels), config.batch_size, shard.rank, shard.world_size, config.seed, config.shuffle)
    order, finish = Order(plan, shard.device), finisher(shard.dataset, config.image_size, config.channels_last, shard.device)
    return Resident(view, labels, order, config.batch_size, finish, arrays.data("tensor"))


TOGETHER = 8
"""Batches that are made at once: a small model takes less time for a step than the host for the kernels of a batch."""


class Order:
    """The plan's sample numbers, on the device: uploaded an epoch at a time, so that no step waits for a copy."""

    def __init__(self, plan: ShardPlan, device: torch.device) -> None:
        self._epochs, self._device = plan.epochs(), device
        self._ahead = torch.empty(0, dtype=torch.int64, device=device)

    def next(self, samples: int) -> Tensor:
        """The numbers (``samples``,) of the samples that come next."""
        while len(self._ahead) < samples:
            epoch = next(self._epochs)
            if self._device.type == "cuda":
                epoch = epoch.pin_memory()
            self._ahead = torch.cat([self._ahead, epoch.to(self._device, non_blocking=True)])
        numbers, self._ahead = self._ahead[:samples], self._ahead[samples:]
        return numbers


class Resident(Workerless):
    """Batches out of the device's own memory, made on the compute stream, which the host never waits for."""

    def __init__(
        self,
        samples: Tensor | CropAndFlip,
        labels: Tensor,
        order: Order,
        batch_size: int,
        finish: Callable[[Tensor], Tensor],
        data: Data,
    ) -> None:
        self.data = data
        self._samples, self._labels, self._order, self._batch_size, self._finish = samples, labels, order, batch_size, finish
        self._made: Iterator[Batch] = iter(())

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        batch = next(self._made, None)
        if batch is None:
            numbers = self._order.next(TOGETHER * self._batch_size)
            parts = (self._finish(self._samples[numbers]), self._labels[numbers])
            self._made = zip(*(part.split(self._batch_size) for part in parts), strict=True)
            batch = next(self._made)
        in_hand()
        return batch
