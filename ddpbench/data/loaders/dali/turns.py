"""Pipelines that make whole batches by turns: all of them work while one is waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from ddpbench.data.loader import WorkerTiming


def weighted_round_robin(threads: Sequence[int]) -> Iterator[int]:
    """Which of several pipelines makes one batch after the other, without end: each as often as it has ``threads``, spread evenly.

    Those with fewer threads take longer for a batch, and strictly by turns they would hold up the others.
    """
    made = [0] * len(threads)
    while True:
        first = min(range(len(threads)), key=lambda place: (made[place] + 1) / threads[place])
        made[first] += 1
        yield first


class RoundRobin:
    """Pipelines of so many ``threads``. One that gave its batch goes on when the next batch is asked for, from whichever that comes."""

    def __init__(self, pipelines: Sequence[Any], threads: Sequence[int]) -> None:
        self._pipelines = self._idle = pipelines
        self._order = weighted_round_robin(threads)
        self._received_s = [perf_counter()] * len(pipelines)

    def next_output(self) -> tuple[Any, WorkerTiming]:
        """The next batch, DALI's own list of tensors, and since when it was made. Raises RuntimeError where its pipeline dies of it."""
        for rested in self._idle:
            rested.schedule_run()
        place = next(self._order)
        self._idle = [self._pipelines[place]]
        (images,) = self._pipelines[place].outputs()
        began, self._received_s[place] = self._received_s[place], perf_counter()
        return images, WorkerTiming(began, self._received_s[place])

    def close(self) -> None:
        """Ends their threads."""
        self._pipelines = self._idle = ()
