"""Pairs of cores on which measurements run, several at once on a machine with more than two."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

CORES = 2
"""Of one measurement."""

T = TypeVar("T")


def run_on_core_slots(measure: Callable[[T, list[int]], None], tasks: Iterable[T], at_once: int | None = None) -> None:
    """Call ``measure`` with each task and cores of its own, in threads, at most ``at_once``. Raises what a call has raised."""
    usable = sorted(os.sched_getaffinity(0))
    slots: queue.Queue[list[int]] = queue.Queue()
    for first in range(0, max(len(usable) - CORES, 0) + 1, CORES)[:at_once]:
        slots.put(usable[first : first + CORES])

    def run(task: T) -> None:
        cores = slots.get()
        try:
            measure(task, cores)
        finally:
            slots.put(cores)

    pool = ThreadPoolExecutor(slots.qsize())
    try:
        for done in [pool.submit(run, task) for task in tasks]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def pinned(words: list[str], cores: Iterable[int]) -> list[str]:
    """The program ``words`` on ``cores`` only."""
    return ["taskset", "-c", ",".join(map(str, cores)), *words]
