"""Which samples a rank reads, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, islice

import torch
from torch import Tensor


class DistributedBatchSampler:
    """Endless batches of sample numbers for one rank, one epoch after another, shuffled or not, as torch's DistributedSampler has them.

    A batch may hold the end of one epoch and the start of the next. Within an epoch the ranks share out all samples; up to
    ``world_size - 1`` of them come twice, so that every rank has as many as the others.
    """

    def __init__(self, num_samples: int, batch_size: int, rank: int, world_size: int, seed: int, shuffle: bool) -> None:
        self.batch_size = batch_size
        self._num_samples, self._rank, self._world_size, self._seed, self._shuffle = num_samples, rank, world_size, seed, shuffle

    def __iter__(self) -> Iterator[list[int]]:
        numbers = self.indices()
        while True:
            yield list(islice(numbers, self.batch_size))

    def indices(self) -> Iterator[int]:
        """The sample numbers of one epoch after another, endlessly."""
        return chain.from_iterable(epoch.tolist() for epoch in self.epoch_indices())

    def epoch_indices(self) -> Iterator[Tensor]:
        """The sample numbers of every epoch, int64 (E,).

        No Python list is made of them, which would take longer than training on some.
        """
        own = self._shard_positions()
        for number in count():
            yield self._permutation(number)[own] if self._shuffle else own

    def all_indices(self) -> Sequence[int]:
        """The numbers of all samples that this rank is given sooner or later: where they are shuffled, every one there is."""
        return range(self._num_samples) if self._shuffle else self._shard_positions().tolist()

    def _shard_positions(self) -> Tensor:
        """Where this rank's share stands in the order of an epoch."""
        shares = -(-self._num_samples // self._world_size)
        return torch.arange(self._rank, shares * self._world_size, self._world_size) % self._num_samples

    def _permutation(self, epoch: int) -> Tensor:
        return torch.randperm(self._num_samples, generator=torch.Generator().manual_seed(self._seed + epoch))
