"""Drains batches prefetched during a pause, before a round begins."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter

from ddpbench.distributed.world import World
from ddpbench.machine.step_timer import StepTimer

MAX_DRAINS, DRAIN_PORTIONS = 4, 4
"""Maximum number of times the prefetch queue is drained, and portions per drain; the data wait is checked after each."""

DATA_WAIT_FRACTION = 0.25
"""A step waited for data if the loader blocked the host for more than this fraction of the step."""


class PrefetchDrainer:
    """Trains until the prefetched batches are used up.

    A loader slightly slower than the device is fed from its prefetched batches for many steps, and looks fast until they run out. If no
    step waited before the first round, the loader outpaces the device, and later rounds drain once.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._outpaces_device = False  # whether the loader was faster than the device in an earlier drain

    def drain_prefetch(self, train: Callable[[int], float], timer: StepTimer, max_prefetched: int, limit_s: float) -> None:
        """Train prefetched batches until a step waits for data.

        Drains at most ``max_prefetched`` batches and one more, up to MAX_DRAINS times. ``train`` takes a number of steps and returns
        their seconds. No new portion begins after ``limit_s`` seconds. All ranks agree on each decision.
        """
        end = perf_counter() + limit_s
        batches_per_drain = max_prefetched + 1
        remaining, portion = (
            batches_per_drain if self._outpaces_device or batches_per_drain == 1 else MAX_DRAINS * batches_per_drain,
            -(-batches_per_drain // DRAIN_PORTIONS),
        )
        while remaining > 0:
            step_ms = train(portion) / portion * 1e3
            if self._world.all_max(max(timer.host_data_ms()) / step_ms) > DATA_WAIT_FRACTION:
                return
            remaining -= portion
            if limit_s < inf and self._world.all_max(perf_counter() - end) > 0:
                return
        self._outpaces_device = True
