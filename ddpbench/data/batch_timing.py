"""Timings of batches, in the workers and at the hand-off: the source of LoaderStats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from statistics import fmean
from time import perf_counter, thread_time

from ddpbench.data.loader import WorkerTiming
from ddpbench.machine.cpu import runqueue_wait_s
from ddpbench.record.errors import BenchError
from ddpbench.record.loader_stats import LoaderStats, sum_by_stage

MIN_WAIT_S = 1e-3
"""A trainer that was longer at the loader stood waiting; taking a batch that is ready out of a queue is a matter of 0.1 ms."""


@dataclass(frozen=True)
class BatchTiming:
    """One batch: when the trainer asked for it, when it had it, and what its worker tells."""

    requested_s: float
    received_s: float
    images: int
    worker_timing: WorkerTiming

    @property
    def wait_s(self) -> float:
        """How long the trainer stood waiting; 0 where it took what was ready."""
        stood_s = self.received_s - self.requested_s
        return stood_s if stood_s > MIN_WAIT_S else 0.0

    @property
    def handoff_s(self) -> float:
        """The part of the wait in which the batch was made already."""
        return self.received_s - max(self.requested_s, self.worker_timing.end_s)


class BatchTimings:
    """The batches that came since somebody asked about them."""

    def __init__(self) -> None:
        self._timings: list[BatchTiming] = []

    def record(self, requested_s: float, images: int, worker_timing: WorkerTiming) -> None:
        """A batch of so many ``images`` is there now."""
        self._timings.append(BatchTiming(requested_s, perf_counter(), images, worker_timing))

    def pop_stats(self) -> LoaderStats | None:
        """What the workers did for them; None where none came. The next ones are told of by themselves."""
        since, self._timings = self._timings, []
        return to_stats(since) if since else None


def to_stats(timings: Sequence[BatchTiming]) -> LoaderStats:
    """What the workers did for the batches that arrived, in this order."""
    sheets = [arrival.worker_timing for arrival in timings]
    stood_for = [arrival.handoff_s for arrival in timings if arrival.wait_s]
    return LoaderStats(
        images=sum(arrival.images for arrival in timings),
        cpu_s=sum_by_stage(sheet.cpu_s for sheet in sheets),
        wall_s=sum_by_stage(sheet.wall_s for sheet in sheets),
        runqueue_wait_s=None
        if any(sheet.runqueue_wait_s is None for sheet in sheets)
        else sum(sheet.runqueue_wait_s or 0.0 for sheet in sheets),
        batch_ms=[1e3 * (sheet.end_s - sheet.start_s) for sheet in sheets],
        handoff_ms=1e3 * fmean(stood_for) if stood_for else None,
        head_of_line_fraction=head_of_line_fraction(timings),
        skipped_files=[problem.message for sheet in sheets for problem in sheet.skipped_files],
    )


def head_of_line_fraction(timings: Sequence[BatchTiming]) -> float | None:
    """The share of all waiting in which the batch whose turn it was was not made yet, and a later one was; None without a wait.

    None too where nobody tells what was done to a batch: its end is then known only from its turn, and no later one comes before it.
    Of the last batches nobody knows yet which later ones were made: of a round of many the share is a little too small.
    """
    waited_s = sum(arrival.wait_s for arrival in timings)
    if not waited_s or not any(arrival.worker_timing.cpu_s for arrival in timings):
        return None
    first_of_later = list(accumulate((arrival.worker_timing.end_s for arrival in reversed(timings)), min, initial=inf))[-2::-1]
    blocked_s = (
        max(0.0, min(arrival.received_s, arrival.worker_timing.end_s) - max(arrival.requested_s, later))
        for arrival, later in zip(timings, first_of_later, strict=True)
        if arrival.wait_s
    )
    return sum(blocked_s) / waited_s


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
