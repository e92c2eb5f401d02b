"""Batch timings from the workers and at the handoff: the source of LoaderStats."""

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
"""Longer calls to the loader count as waits; taking a ready batch out of a queue takes about 0.1 ms."""


@dataclass(frozen=True)
class BatchTiming:
    """Request time, receive time and worker timing of one batch."""

    requested_s: float
    received_s: float
    samples: int
    worker_timing: WorkerTiming

    @property
    def wait_s(self) -> float:
        """Seconds that the trainer waited; 0 if the batch was ready."""
        waited_s = self.received_s - self.requested_s
        return waited_s if waited_s > MIN_WAIT_S else 0.0

    @property
    def handoff_s(self) -> float:
        """Seconds of the wait after the worker had finished the batch."""
        return self.received_s - max(self.requested_s, self.worker_timing.end_s)


class BatchTimings:
    """Timings of the batches received since the last ``pop_stats``."""

    def __init__(self) -> None:
        self._timings: list[BatchTiming] = []
        self._sampler_s: float | None = None

    def add_sampler_time(self, seconds: float) -> None:
        """The trainer has drawn indices for so many seconds."""
        self._sampler_s = (self._sampler_s or 0.0) + seconds

    def record(self, requested_s: float, samples: int, worker_timing: WorkerTiming) -> None:
        """Record a batch of ``samples`` images that has just arrived."""
        self._timings.append(BatchTiming(requested_s, perf_counter(), samples, worker_timing))

    def pop_stats(self) -> LoaderStats | None:
        """Stats of the batches since the last call, then reset; None if there were no batches."""
        timings, self._timings = self._timings, []
        sampler_s, self._sampler_s = self._sampler_s, None
        return to_stats(timings, sampler_s) if timings else None


def to_stats(timings: Sequence[BatchTiming], sampler_s: float | None = None) -> LoaderStats:
    """LoaderStats of the received batches, in order of arrival."""
    worker_timings = [timing.worker_timing for timing in timings]
    handoffs_s = [timing.handoff_s for timing in timings if timing.wait_s]
    return LoaderStats(
        samples=sum(timing.samples for timing in timings),
        cpu_s=sum_by_stage(each.cpu_s for each in worker_timings),
        wall_s=sum_by_stage(each.wall_s for each in worker_timings),
        parts_s=sum_by_stage(each.parts_s for each in worker_timings),
        runqueue_wait_s=None
        if any(each.runqueue_wait_s is None for each in worker_timings)
        else sum(each.runqueue_wait_s or 0.0 for each in worker_timings),
        batch_ms=[1e3 * (each.end_s - each.start_s) for each in worker_timings],
        sampler_s=sampler_s,
        num_waits=len(handoffs_s),
        waited_ms=1e3 * sum(timing.wait_s for timing in timings),
        handoff_ms=1e3 * fmean(handoffs_s) if handoffs_s else None,
        head_of_line_fraction=head_of_line_fraction(timings),
        skipped_files=[problem.message for each in worker_timings for problem in each.skipped_files],
    )


def head_of_line_fraction(timings: Sequence[BatchTiming]) -> float | None:
    """Fraction of the waiting time in which a later batch was ready first.

    None if no step waited, or if the worker timings have no stages: the end of a batch is then known only from its turn, and no later
    batch ends before it. For the last batches it is not yet known which later ones were ready, so the fraction of a round of many batches
    is slightly too small.
    """
    waited_s = sum(timing.wait_s for timing in timings)
    if not waited_s or not any(timing.worker_timing.cpu_s for timing in timings):
        return None
    first_of_later = list(accumulate((timing.worker_timing.end_s for timing in reversed(timings)), min, initial=inf))[-2::-1]
    blocked_s = (
        max(0.0, min(timing.received_s, timing.worker_timing.end_s) - max(timing.requested_s, later))
        for timing, later in zip(timings, first_of_later, strict=True)
        if timing.wait_s
    )
    return sum(blocked_s) / waited_s


class Stopwatch:
    """Times the stages of one worker's batch, lap by lap.

    The dataset and the collate function share one; each worker has its own copy of both. CPU seconds are those of the thread that
    prepares the batch, the only one that does so in a worker. Clocks are only read during the batch and summed at its end: each sample
    takes a few laps, and its pixels should stay in the caches between them.
    """

    def __init__(self) -> None:
        self.skipped_files: list[BenchError] = []
        self.samples: int | None = None  # of the batch; None if unknown
        self._readings: list[tuple[str, float, float]] = []  # stage that ended, CPU clock, wall clock
        self._parts_s: dict[str, float] = {}
        self._runqueue_wait_s: float | None = None  # reading at the start of the batch

    def start(self) -> None:
        """Start timing a sample or the collation.

        Starts the batch if none is running, else does nothing.
        """
        if not self._readings:
            self._runqueue_wait_s = runqueue_wait_s()
            self._readings.append(("", thread_time(), perf_counter()))

    def lap(self, stage: str) -> None:
        """Charge the time since the last lap, or since the start of the batch, to ``stage``."""
        self._readings.append((stage, thread_time(), perf_counter()))

    def add_part(self, name: str, wall_s: float) -> None:
        """A part of a stage has taken ``wall_s``."""
        self._parts_s[name] = self._parts_s.get(name, 0.0) + wall_s

    def finish_batch(self) -> WorkerTiming:
        """Timing of the batch, which ended with the last lap.

        The next ``start`` begins the next batch.
        """
        cpu_s: dict[str, float] = {}
        wall_s: dict[str, float] = {}
        for (_, cpu_before, wall_before), (stage, cpu, wall) in pairwise(self._readings):
            cpu_s[stage] = cpu_s.get(stage, 0.0) + cpu - cpu_before
            wall_s[stage] = wall_s.get(stage, 0.0) + wall - wall_before
        start_s, end_s = self._readings[0][2], self._readings[-1][2]
        before, now = self._runqueue_wait_s, runqueue_wait_s()
        queued_s = (
            None if before is None or now is None else min(now - before, end_s - start_s)
        )  # the thread may wait again after the last lap
        timing = WorkerTiming(start_s, end_s, cpu_s, wall_s, tuple(self.skipped_files), queued_s, self._parts_s, self.samples)
        self._readings, self.skipped_files, self._parts_s, self.samples = [], [], {}, None
        return timing
