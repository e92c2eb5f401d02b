"""Seconds by stage, taken in the process that makes a batch while it makes it."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter, thread_time

from ddpbench.data.loader import WorkerTiming
from ddpbench.machine.cpu_usage import runqueue_wait_s
from ddpbench.record.errors import BenchError


class Stopwatch:
    """What one worker's batch has cost so far: lap after lap, each charged to a stage.

    The dataset and the function that collates share one, and each worker has its own copy of both. CPU seconds are of the thread
    that makes the batch, the only one in a worker that does. Clocks are only read while it is made, and the sums made at its end:
    each sample takes a few laps, between which the caches are filled with its pixels.
    """

    def __init__(self) -> None:
        self.skipped_files: list[BenchError] = []
        self._readings: list[tuple[str, float, float]] = []  # the stage that ends, CPU and wall clock
        self._runqueue_wait_s: float | None = None  # when the batch began

    def start(self) -> None:
        """A sample begins, or what is done with all of them. The first begins the batch, and any other goes on where it stands."""
        if not self._readings:
            self._runqueue_wait_s = runqueue_wait_s()
            self._readings.append(("", thread_time(), perf_counter()))

    def lap(self, stage: str) -> None:
        """What went by since the last lap, or the start of the batch, was ``stage``."""
        self._readings.append((stage, thread_time(), perf_counter()))

    def finish_batch(self) -> WorkerTiming:
        """The batch's, which ended with the last lap; the next batch begins with the next start."""
        cpu_s: dict[str, float] = {}
        wall_s: dict[str, float] = {}
        for (_, cpu_before, wall_before), (stage, cpu, wall) in pairwise(self._readings):
            cpu_s[stage] = cpu_s.get(stage, 0.0) + cpu - cpu_before
            wall_s[stage] = wall_s.get(stage, 0.0) + wall - wall_before
        began, ended = self._readings[0][2], self._readings[-1][2]
        before, now = self._runqueue_wait_s, runqueue_wait_s()
        queued = None if before is None or now is None else min(now - before, ended - began)  # it may wait once more after the last lap
        sheet = WorkerTiming(began, ended, cpu_s, wall_s, tuple(self.skipped_files), queued)
        self._readings, self.skipped_files = [], []
        return sheet
