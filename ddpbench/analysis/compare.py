"""Compare the arms of one job: throughput of each, and its ratio to the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.disturbance import without_disturbed
from ddpbench.analysis.stats import Interval, PairedRatio, log_t_interval, ratio_of
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.throughput import ThroughputInterval, throughput_interval
from ddpbench.record.record import Record, ThroughputEstimate

COMPARABLE_STATUSES = ("ok", "running", "interrupted")
"""Statuses of arms whose rounds may be compared: the arm itself did not fail."""


@dataclass(frozen=True)
class ArmRow:
    """One arm compared with the first. Without a figure or a comparison, ``state`` names the status."""

    record: Record
    samples_per_s: float | None = None
    interval: ThroughputInterval | None = None
    speedup: PairedRatio | None = None
    rounds_differ: bool = False  # the speed-up uses other rounds than the figures of the two arms
    memory_bytes: int | None = None  # peak of a device; on CPU, of a rank with its workers
    state: str = ""  # a status, "not measured", "not comparable" for other devices than the first arm's, or empty


def compare(records: Sequence[Record]) -> list[ArmRow]:
    """One row per record of ``records``, the interleaved arms of a job.

    Each is compared with the first arm of the same workload. The speed-up is None if that arm has no figure, or they share no rounds.
    """
    firsts: dict[str, Record] = {}
    return [_row(record, firsts.setdefault(record.config.workload, record)) for record in records]


def throughput_ratio(
    record: Record, baseline: Record, interval: Callable[[Sequence[float]], Interval] = log_t_interval
) -> PairedRatio | None:
    """Throughput of ``record`` as a multiple of ``baseline``, paired by round; None if they share no rounds.

    ``interval`` gives the interval of the ratios.
    """
    own = {timed.index: timed.samples_per_s for timed in record.rounds}
    base = {timed.index: timed.samples_per_s for timed in baseline.rounds}
    shared = sorted(own.keys() & base.keys())
    return ratio_of([base[index] for index in shared], [own[index] for index in shared], interval) if shared else None


def comparable_estimate(record: Record) -> ThroughputEstimate | None:
    """The throughput estimate of an arm; None if the arm failed."""
    return record.throughput if record.status in COMPARABLE_STATUSES else None


def same_devices(record: Record, other: Record) -> bool:
    return _device_counts(record) == _device_counts(other)


def _row(record: Record, first: Record) -> ArmRow:
    summary, cuda = summarize(record), record.environment.device_type == "cuda"
    row = ArmRow(record, memory_bytes=summary.peak_allocated_bytes if cuda else summary.rss_bytes)
    estimate = comparable_estimate(record)
    if estimate is None:
        state = "not measured" if record.status == "ok" else record.status
        return replace(row, state=state)
    row = replace(row, samples_per_s=estimate.samples_per_s, interval=throughput_interval(record))
    if not same_devices(record, first):
        return replace(row, state="not comparable")
    speedup = throughput_ratio(without_disturbed(record), first) if comparable_estimate(first) else None
    rounds_differ = speedup is not None and {len(record.rounds), len(first.rounds)} != {speedup.pairs}
    return replace(row, speedup=speedup, rounds_differ=rounds_differ)


def _device_counts(record: Record) -> Counter[str]:
    return Counter(place.device_name for place in record.environment.placements)
