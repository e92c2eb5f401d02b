"""A rank's plan as names of files: what DALI is to read next, and what of it has not come back yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from ddpbench.data.loaders.dali.graph import EncodedPath, encode_path
from ddpbench.data.sampler import DistributedBatchSampler


class FileFeeder:
    """Batches of sample numbers, handed over in the plan's order, whichever pipeline asks for its names first."""

    def __init__(self, files: Sequence[str], sampler: DistributedBatchSampler) -> None:
        self._files, self._sampler = files, sampler
        self._skipped: set[int] = set()
        self._numbers = (number for number in sampler.indices() if number not in self._skipped)
        self._pending: deque[list[int]] = deque()
        self._next = 0  # the place in the plan of the first of them

    def encoded_paths(self, places: Iterable[int]) -> Iterator[list[EncodedPath]]:
        """Of the files of the batches at these ``places``, 0 for the one that is handed over next."""
        begin = self._next
        return ([encode_path(self._files[number]) for number in self._batch(begin + place)] for place in places)

    def pop_batch(self) -> list[int]:
        """The numbers of the samples of the batch that has come back."""
        self._next += 1
        return self._pending.popleft()

    def pending_batches(self) -> list[list[int]]:
        """The batches that have not come back."""
        return list(self._pending)

    def skip(self, numbers: Collection[int]) -> bool:
        """None of these samples comes any more, and on its way the plan's next ones are in their place; whether there are any others."""
        self._skipped.update(numbers)
        if self._skipped.issuperset(self._sampler.all_indices()):
            return False
        for batch in self._pending:
            batch[:] = [next(self._numbers) if number in self._skipped else number for number in batch]
        return True

    def _batch(self, place: int) -> list[int]:
        """By its place in the plan."""
        while place - self._next >= len(self._pending):
            self._pending.append(list(islice(self._numbers, self._sampler.batch_size)))
        return self._pending[place - self._next]
