"""A rank's plan as names of files: what DALI is to read next, and what of it has not come back yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from ddpbench.data.dali.graph import Name, name_of
from ddpbench.data.plan import ShardPlan


class Feed:
    """Batches of sample numbers, handed over in the order in which their names were asked for."""

    def __init__(self, files: Sequence[str], plan: ShardPlan) -> None:
        self._files, self._plan = files, plan
        self._left_out: set[int] = set()
        self._numbers = (number for number in plan.numbers() if number not in self._left_out)
        self._ahead: deque[list[int]] = deque()  # DALI has their names
        self._again: deque[list[int]] = deque()  # DALI had, and lost them

    def names(self) -> Iterator[list[Name]]:
        """Of the files of one batch after the other, without end."""
        while True:
            batch = self._again.popleft() if self._again else list(islice(self._numbers, self._plan.batch_size))
            self._ahead.append(batch)
            yield [name_of(self._files[number]) for number in batch]

    def handed_over(self) -> list[int]:
        """The numbers of the samples of the batch that has come back."""
        return self._ahead.popleft()

    def on_its_way(self) -> list[list[int]]:
        """The batches that have not come back."""
        return list(self._ahead)

    def leave_out(self, numbers: Collection[int]) -> bool:
        """None of these samples comes any more; whether any other does."""
        self._left_out.update(numbers)
        return any(number not in self._left_out for number in self._plan.reach())

    def once_more(self) -> None:
        """DALI is started anew: all that is on its way comes again, with the plan's next samples in the place of those left out."""
        for batch in reversed(self._ahead):
            self._again.appendleft(batch)
        self._ahead.clear()
        for batch in self._again:
            batch[:] = [next(self._numbers) if number in self._left_out else number for number in batch]
