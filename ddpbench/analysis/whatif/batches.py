"""Batch times of loader workers, and the CPU time that loading costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

from ddpbench.analysis.pipeline.costs import loader_cost
from ddpbench.record.diagnosis import LoaderBenchmark
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.prediction import Assumption

MIN_BATCHES_PER_RANK = 8
"""Batches per rank needed to use their individual times."""

MAX_RECEIVING_FRACTION = 0.7
"""A trainer that spends more of its time on receiving batches may be what limits a loader benchmark."""

BatchSeconds = Sequence[Sequence[Sequence[float]]]
"""Seconds by round, rank and batch, in a worker that always has a core."""


@dataclass(frozen=True)
class ProducerTimes:
    """``read_wait_fraction`` is the part of a batch's time in which its worker waits for files.

    None if unknown.
    """

    times_s: BatchSeconds
    read_wait_fraction: float | None
    assumptions: tuple[Assumption, ...] = ()


def worker_times(stats: Sequence[Sequence[LoaderStats]], batch: int) -> ProducerTimes | None:
    """Return the batch times of worker processes, from ``stats`` by round and rank.

    None if they report no times.
    """
    cost = loader_cost(loading for each in stats for loading in each)
    if cost is None:
        return None
    free = cost.uncontended_wall_s() / cost.wall_s
    read_wait_fraction = cost.read_wait_s / cost.uncontended_wall_s() if "read" in cost.wall_s_by_stage else None
    rounds = [[[free * span / 1000 for span in loading.batch_ms] for loading in each] for each in stats]
    if min(fsum(len(each[rank]) for each in rounds) for rank in range(len(stats[0]))) >= MIN_BATCHES_PER_RANK:
        return ProducerTimes([each for each in rounds if all(each)], read_wait_fraction)
    equal_times = [[[batch * (loader_cost([loading]) or cost).uncontended_wall_s()] for loading in each] for each in stats]
    return ProducerTimes(equal_times, read_wait_fraction, (Assumption(code="equal-batches", log_error=0.05),))


def round_robin_times(benchmarks: Sequence[LoaderBenchmark], num_producers: int) -> ProducerTimes:
    """Return the batch times of producers that report none.

    Loader benchmarks give the turns: the time from one batch of a producer to its next.
    """
    return ProducerTimes([[_turn_durations(each.intervals_ms, max(1, num_producers)) for each in benchmarks]], None)


def _turn_durations(intervals_ms: Sequence[float], num_producers: int) -> list[float]:
    """Seconds of the turn that ends with each batch.

    If not even one turn is complete, it is extrapolated from its intervals.
    """
    window = min(num_producers, len(intervals_ms))
    return [num_producers * fmean(intervals_ms[end - window : end]) / 1000 for end in range(window, len(intervals_ms) + 1)]


def sample_cpu_s(benchmarks: Sequence[LoaderBenchmark]) -> float:
    """CPU seconds per image outside the trainer's main thread."""
    cost = loader_cost(each.loader_stats for each in benchmarks)
    return cost.cpu_s if cost else fmean(each.loader_cpu_s / each.samples for each in benchmarks)


def blocked_s(benchmarks: Sequence[LoaderBenchmark], workers: int) -> float | None:
    """Seconds per image for which a worker waits for something else than a core, by what all of them deliver; None if unknown.

    ``workers`` are those of the run, which a benchmark has that names none. The times of single batches leave out the first of each worker,
    and so may miss the wait of many workers that begin at once. A trainer that is busy receiving keeps workers waiting, too.
    """
    cost = loader_cost(each.loader_stats for each in benchmarks)
    if cost is None or cost.blocked_s is None:
        return None
    if any(each.main_process_cpu_s >= MAX_RECEIVING_FRACTION * each.elapsed_s for each in benchmarks):
        return cost.blocked_s
    delivered_s = fmean(max(1, workers if each.workers is None else each.workers) * each.elapsed_s / each.samples for each in benchmarks)
    return max(cost.blocked_s, delivered_s - cost.cpu_s - (cost.runqueue_wait_s or 0.0))


def handoff_cpu_s(benchmarks: Sequence[LoaderBenchmark]) -> float:
    """CPU seconds of the handoff per image: in the trainer, and in the worker apart from the stages."""
    cost = loader_cost(each.loader_stats for each in benchmarks)
    outside_stages = fmean(each.loader_cpu_s / each.samples for each in benchmarks) - cost.cpu_s if cost else 0.0
    return fmean(each.main_process_cpu_s / each.samples for each in benchmarks) + max(0.0, outside_stages)


def scale_times(rounds: BatchSeconds, factor: float) -> BatchSeconds:
    return [[[factor * span for span in rank] for rank in each] for each in rounds]
