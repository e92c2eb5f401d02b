"""What is measured in a timed window besides the times of its steps: the loader's statistics, and who used the CPU."""

from __future__ import annotations

import os
from typing import Protocol

from ddpbench.data.background import BackgroundTaker
from ddpbench.machine.cpu import CpuMonitor
from ddpbench.machine.host import cpu_seconds
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.script.diagnose.own_loader import SteeredIterator, TimedIterator
from ddpbench.script.diagnose.stage import Stage, WindowResult


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


class OwnLoader:
    """The script's own loader: a new epoch may bring another iterator, with other workers."""

    def __init__(self, iterator: SteeredIterator) -> None:
        self._iterator = iterator

    def worker_pids(self) -> list[int]:
        own = self._iterator.own
        return own.worker_pids() if isinstance(own, TimedIterator) else []

    def pop_stats(self) -> LoaderStats | None:
        own = self._iterator.own
        return own.pop_stats() if isinstance(own, TimedIterator) else None


class LoaderInBackground(OwnLoader):
    """The script's own loader, whose batches a thread drops."""

    def __init__(self, iterator: SteeredIterator) -> None:
        super().__init__(iterator)
        self._batch_size = iterator.source.batch_size or 1
        self.taker = BackgroundTaker(iterator.drop_own)

    def pop_stats(self) -> LoaderStats:
        return LoaderStats(samples=self._batch_size * self.taker.pop_taken())


class Measurement:
    """Measures from construction, at the request for batch ``first``, until ``finish``."""

    def __init__(self, stage: Stage, first: int, loader: LoaderInUse) -> None:
        self._stage, self._batches, self._loader = stage, stage.end - first, loader
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
        return cpu_seconds([os.getpid(), *self._loader.worker_pids()])
