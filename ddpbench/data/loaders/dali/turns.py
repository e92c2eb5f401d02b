"""Pipelines that make whole batches by turns: all of them work while one is waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from ddpbench.data.loader import Sheet


def in_turn(threads: Sequence[int]) -> Iterator[int]:
    """Which of several pipelines makes one batch after the other, without end: each as often as it has ``threads``, spread evenly.

    Those with fewer threads take longer for a batch, and strictly by turns they would hold up the others.
    """
    made = [0] * len(threads)
    while True:
        first = min(range(len(threads)), key=lambda place: (made[place] + 1) / threads[place])
        made[first] += 1
        yield first


class Turns:
    """Pipelines of so many ``threads``. One that gave its batch goes on when the next batch is asked for, from whichever that comes."""

    def __init__(self, pipelines: Sequence[Any], threads: Sequence[int]) -> None:
        self._pipelines = self._rested = pipelines
        self._order = in_turn(threads)
        self._had = [perf_counter()] * len(pipelines)

    def run(self) -> tuple[Any, Sheet]:
        """The next batch, DALI's own list of tensors, and since when it was made. Raises RuntimeError where its pipeline dies of it."""
        for rested in self._rested:
            rested.schedule_run()
        place = next(self._order)
        self._rested = [self._pipelines[place]]
        (images,) = self._pipelines[place].outputs()
        began, self._had[place] = self._had[place], perf_counter()
        return images, Sheet(began, self._had[place])

    def end(self) -> None:
        """Ends their threads."""
        self._pipelines = self._rested = ()
