"""What was prefetched during a pause, trained away before a round begins."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter

from ddpbench.distributed.world import World
from ddpbench.machine.step_timer import Clock

MOST_DRAINS, DRAIN_PORTIONS = 4, 4
"""A stock is trained away up to so many times, and looked at after every one of so many portions of it."""

WAITED = 0.25
"""A step waited for data when the host stood for this fraction of a step at the loader."""


class Drain:
    """A loader a little slower than the device lives on its stock for many steps, and looks fast until that is gone.

    One that never made a step wait before the first round is ahead of the device: later rounds drain it once.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ahead = False  # whether the loader was seen to be faster than the device

    def run(self, train: Callable[[int], float], clock: Clock, in_flight: int, limit_s: float) -> None:
        """Trains as many steps as batches can be ready, again and again until one waited for data.

        ``in_flight`` of them can be; ``train`` returns the seconds that so many steps took. No other portion begins after
        ``limit_s`` seconds. All ranks agree on each decision.
        """
        end = perf_counter() + limit_s
        stock = in_flight + 1
        left, portion = stock if self._ahead or stock == 1 else MOST_DRAINS * stock, -(-stock // DRAIN_PORTIONS)
        while left > 0:
            step_ms = train(portion) / portion * 1e3
            if self._world.most(max(clock.host_data_ms()) / step_ms) > WAITED:
                return
            left -= portion
            if limit_s < inf and self._world.most(perf_counter() - end) > 0:
                return
        self._ahead = True
