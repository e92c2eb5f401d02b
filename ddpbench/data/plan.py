"""Which images a rank reads, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

from torch.utils.data import DistributedSampler


class ShardPlan:
    """Endless batches of image numbers for one rank: torch's DistributedSampler, one shuffled epoch after another.

    A batch may hold the end of one epoch and the start of the next. Within an epoch the ranks share out all images; up to
    ``world_size - 1`` of them come twice, so that every rank has as many as the others.
    """

    def __init__(self, images: int, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        self._batch_size = batch_size
        all_images: Any = range(images)  # the sampler asks for a length, no more
        self._sampler: DistributedSampler[Any] = DistributedSampler(all_images, world_size, rank, seed=seed)

    def __iter__(self) -> Iterator[list[int]]:
        stream = chain.from_iterable(self._epoch(number) for number in count())
        while True:
            yield list(islice(stream, self._batch_size))

    def _epoch(self, number: int) -> Iterator[int]:
        self._sampler.set_epoch(number)
        return iter(self._sampler)
