"""A rank's plan as names of files: what DALI is to read next, and what of it has not come back yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from ddpbench.data.loaders.dali.graph import Name, name_of
from ddpbench.data.sampler import ShardPlan


class Feed:
    """Batches of sample numbers, handed over in the plan's order, whichever pipeline asks for its names first."""

    def __init__(self, files: Sequence[str], plan: ShardPlan) -> None:
        self._files, self._plan = files, plan
        self._left_out: set[int] = set()
        self._numbers = (number for number in plan.numbers() if number not in self._left_out)
        self._ahead: deque[list[int]] = deque()
        self._next = 0  # the place in the plan of the first of them

    def names(self, places: Iterable[int]) -> Iterator[list[Name]]:
        """Of the files of the batches at these ``places``, 0 for the one that is handed over next."""
        begin = self._next
        return ([name_of(self._files[number]) for number in self._batch(begin + place)] for place in places)

    def handed_over(self) -> list[int]:
        """The numbers of the samples of the batch that has come back."""
        self._next += 1
        return self._ahead.popleft()

    def on_its_way(self) -> list[list[int]]:
        """The batches that have not come back."""
        return list(self._ahead)

    def leave_out(self, numbers: Collection[int]) -> bool:
        """None of these samples comes any more, and on its way the plan's next ones are in their place; whether there are any others."""
        self._left_out.update(numbers)
        if self._left_out.issuperset(self._plan.reach()):
            return False
        for batch in self._ahead:
            batch[:] = [next(self._numbers) if number in self._left_out else number for number in batch]
        return True

    def _batch(self, place: int) -> list[int]:
        """By its place in the plan."""
        while place - self._next >= len(self._ahead):
            self._ahead.append(list(islice(self._numbers, self._plan.batch_size)))
        return self._ahead[place - self._next]
