"""What was prefetched during a pause, trained away before a round begins."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter

from ddpbench.distributed.world import World
from ddpbench.machine.step_timer import StepTimer

MAX_DRAINS, DRAIN_PORTIONS = 4, 4
"""A stock is trained away up to so many times, and looked at after every one of so many portions of it."""

DATA_WAIT_FRACTION = 0.25
"""A step waited for data when the host stood for this fraction of a step at the loader."""


class PrefetchDrainer:
    """A loader a little slower than the device lives on its stock for many steps, and looks fast until that is gone.

    One that never made a step wait before the first round is ahead of the device: later rounds drain it once.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._outpaces_device = False  # whether the loader was seen to be faster than the device

    def drain_prefetch(self, train: Callable[[int], float], timer: StepTimer, max_prefetched: int, limit_s: float) -> None:
        """Trains as many steps as batches can be ready, again and again until one waited for data.

        ``max_prefetched`` of them can be; ``train`` returns the seconds that so many steps took. No other portion begins after
        ``limit_s`` seconds. All ranks agree on each decision.
        """
        end = perf_counter() + limit_s
        stock = max_prefetched + 1
        left, portion = stock if self._outpaces_device or stock == 1 else MAX_DRAINS * stock, -(-stock // DRAIN_PORTIONS)
        while left > 0:
            step_ms = train(portion) / portion * 1e3
            if self._world.all_max(max(timer.host_data_ms()) / step_ms) > DATA_WAIT_FRACTION:
                return
            left -= portion
            if limit_s < inf and self._world.all_max(perf_counter() - end) > 0:
                return
        self._outpaces_device = True
