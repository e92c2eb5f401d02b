"""Which samples a rank reads, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

from torch.utils.data import DistributedSampler


class ShardPlan:
    """Endless batches of sample numbers for one rank: torch's DistributedSampler, one epoch after another, shuffled or not.

    A batch may hold the end of one epoch and the start of the next. Within an epoch the ranks share out all samples; up to
    ``world_size - 1`` of them come twice, so that every rank has as many as the others.
    """

    def __init__(self, samples: int, batch_size: int, rank: int, world_size: int, seed: int, shuffle: bool) -> None:
        self.batch_size = batch_size
        all_samples: Any = range(samples)  # the sampler asks for a length, no more
        self._sampler: DistributedSampler[Any] = DistributedSampler(all_samples, world_size, rank, shuffle, seed)

    def __iter__(self) -> Iterator[list[int]]:
        stream = chain.from_iterable(self.epochs())
        while True:
            yield list(islice(stream, self.batch_size))

    def epochs(self) -> Iterator[Iterator[int]]:
        """The sample numbers of every epoch."""
        for number in count():
            self._sampler.set_epoch(number)
            yield iter(self._sampler)
