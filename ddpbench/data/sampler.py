"""Which samples a rank reads, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, islice

import torch
from torch import Tensor


class DistributedBatchSampler:
    """Endless batches of sample indices for one rank.

    They have the order of torch's DistributedSampler. Epochs follow each other, shuffled or not; a batch may span two epochs. Within an
    epoch the ranks share all samples; up to ``world_size - 1`` samples occur twice, so that all ranks have equally many.
    """

    def __init__(self, num_samples: int, batch_size: int, rank: int, world_size: int, seed: int, shuffle: bool) -> None:
        self.batch_size = batch_size
        self._num_samples, self._rank, self._world_size, self._seed, self._shuffle = num_samples, rank, world_size, seed, shuffle

    def __iter__(self) -> Iterator[list[int]]:
        numbers = self.indices()
        while True:
            yield list(islice(numbers, self.batch_size))

    def indices(self) -> Iterator[int]:
        """Sample indices of one epoch after another, endlessly."""
        return chain.from_iterable(epoch.tolist() for epoch in self.epoch_indices())

    def epoch_indices(self) -> Iterator[Tensor]:
        """Sample indices of each epoch, int64 (E,), endlessly.

        They stay a tensor: converting them to a Python list can take longer than the training.
        """
        positions = self._shard_positions()
        for number in count():
            yield self._permutation(number)[positions] if self._shuffle else positions

    def all_indices(self) -> Sequence[int]:
        """Indices of all samples that this rank ever reads; the whole dataset if shuffled."""
        return range(self._num_samples) if self._shuffle else self._shard_positions().tolist()

    def _shard_positions(self) -> Tensor:
        """Positions of this rank's shard in the order of an epoch."""
        shares = -(-self._num_samples // self._world_size)
        return torch.arange(self._rank, shares * self._world_size, self._world_size) % self._num_samples

    def _permutation(self, epoch: int) -> Tensor:
        return torch.randperm(self._num_samples, generator=torch.Generator().manual_seed(self._seed + epoch))
