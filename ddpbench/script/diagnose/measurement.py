"""What is measured in a timed window besides the times of its steps: the loader's statistics, and who used the CPU."""

from __future__ import annotations

import os
from typing import Protocol

from ddpbench.data.background import BackgroundTaker
from ddpbench.machine.cpu import CpuMonitor
from ddpbench.machine.host import cpu_seconds
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.script.diagnose.own_loader import SteeredLoader
from ddpbench.script.diagnose.stage import Stage, WindowResult
from ddpbench.script.observe.outside import CpuTime, OutsideTime


class LoaderInUse(Protocol):
    """What loads batches in a window."""

    def worker_pids(self) -> list[int]:
        """Process ids of its workers."""

    def pop_stats(self) -> LoaderStats | None:
        """Statistics of the batches since the last call; None if there are none."""


class NoLoader:
    """Batches are there already. The script's own workers idle."""

    def worker_pids(self) -> list[int]:
        return []

    def pop_stats(self) -> LoaderStats | None:
        return None


class DrainedLoader:
    """The script's own loader, whose batches a thread drops.

    The thread pauses while the script begins an epoch: the new iterator may reset the workers of the one before.
    """

    def __init__(self, loader: SteeredLoader) -> None:
        self._loader = loader
        self._samples = 0  # of the batches taken since the last statistics
        self._taker: BackgroundTaker | None = BackgroundTaker(self._take)

    def _take(self) -> None:
        self._samples += self._loader.drop_own()

    def request(self) -> None:
        """Take one more batch."""
        if self._taker:
            self._taker.request()

    def pause(self, timeout_s: float | None = None) -> None:
        """End the thread, after the batch that it is taking, or abandon it after ``timeout_s``."""
        if self._taker:
            self._taker.close(timeout_s)
            self._taker = None

    def resume(self) -> None:
        """Go on with the loader's present iterator."""
        if self._taker is None:
            self._taker = BackgroundTaker(self._take)

    @property
    def has_iterator(self) -> bool:
        """Whether the loader has an iterator. It has none between two epochs."""
        return self._loader.iterator is not None

    def follow(self, loader: SteeredLoader) -> None:
        """Go on with ``loader``, which has taken the place of the one before."""
        self.pause()
        self._loader = loader
        self.resume()

    def worker_pids(self) -> list[int]:
        return self._loader.worker_pids()

    def pop_stats(self) -> LoaderStats:
        if self._taker:
            self._taker.pop_taken()  # drops its backlog
        samples, self._samples = self._samples, 0
        return LoaderStats(samples=samples)


class Measurement:
    """Measures from construction, at the request for batch ``first``, until ``finish``, without what the script does ``outside``."""

    def __init__(self, stage: Stage, first: int, loader: LoaderInUse, outside: OutsideTime) -> None:
        self._stage, self._batches, self._loader, self._outside = stage, stage.end - first, loader, outside
        loader.pop_stats()  # reset: statistics count from here
        self._monitor = CpuMonitor()
        self._monitor.start()
        self._cpu_s = self._cpu_seconds()

    def finish(self, rows: bytes) -> WindowResult:
        """The result. ``rows`` are the steps of the round."""
        return WindowResult(
            stage=self._stage,
            rows=rows,
            loader_stats=self._loader.pop_stats(),
            cpu_usage=self._monitor.finish(),
            cpu_s=max(0.0, self._cpu_seconds() - self._cpu_s) / self._batches,
        )

    def _cpu_seconds(self) -> float:
        """CPU seconds of this process, its workers, and those of the script's own that have ended with an epoch."""
        outside = self._outside.cpu
        found = cpu_seconds([os.getpid(), *self._loader.worker_pids()]) - outside.own_s
        if isinstance(self._loader, SteeredLoader | DrainedLoader):  # others do not have the workers whose end is counted here
            found += CpuTime.now().ended_s - outside.ended_s
        return found
