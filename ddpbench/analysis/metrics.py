"""Metrics of rounds that are trainings from scratch: time, accuracy, memory, speed, losses; and their spread over rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import fmean, median, stdev

from ddpbench.analysis.ranks import drop_none, mean_or_none
from ddpbench.analysis.stats import MIN_VALUES_FOR_INTERVAL, Interval, PairedRatio, log_t_interval, ratio_of, t_interval
from ddpbench.record.record import Record, Round
from ddpbench.record.trace import Memory, Numerics

MIB = 2**20


@dataclass(frozen=True)
class Metric:
    """One metric of a training. Values are in seconds, bytes, fractions or images/s; ``scale`` of them make one ``unit``."""

    name: str
    title: str  # of its table and its axis, without the unit
    unit: str
    value_of_round: Callable[[Round], float | None]
    scale: float = 1.0
    decimals: int = 2  # as the published sources print it
    is_speed: bool = False  # has no value for an invalid record
    is_fraction: bool = False  # between 0 and 1

    @property
    def heading(self) -> str:
        """Title and unit, such as ``memory of the process (MiB)``."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def values(self, record: Record) -> list[float]:
        """One value per round that has one; none for the speed of an invalid record."""
        return list(self.values_by_round(record).values())

    def values_by_round(self, record: Record) -> dict[int, float]:
        """Like ``values``, keyed by round index."""
        if self.is_speed and record.status == "invalid":
            return {}
        return {timed.index: value for timed in record.rounds if (value := self.value_of_round(timed)) is not None}

    def median_and_interval(self, record: Record) -> Interval | None:
        """The median over rounds with its 95% t-interval; None without values.

        The interval is taken on the logs, or on the values themselves for a fraction. It has no width if there are too few rounds for an
        interval, or if all are alike.
        """
        values = self.values(record)
        if not values:
            return None
        center = median(values)
        if len(values) < MIN_VALUES_FOR_INTERVAL or min(values) == max(values):
            return Interval(center, center, center)
        within = _clipped_t_interval(values) if self.is_fraction else log_t_interval(values)
        return within.recentered(center)


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation over repeats; ``std`` is None for a single value."""

    mean: float
    std: float | None = None


def mean_std(values: Sequence[float]) -> MeanStd | None:
    """Mean and sample standard deviation; None without values."""
    if not values:
        return None
    return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None)


def accuracy_split(record: Record) -> str:
    """The data that accuracy was measured on: the disc has only its training points."""
    return "the training points" if record.sample_unit == "point" else "held-out data"


def accuracy_metric(records: Sequence[Record]) -> Metric:
    """The accuracy metric, whose title names the data it is measured on, the same for all of ``records``."""
    return replace(ACCURACY, title=f"{ACCURACY.title} on {accuracy_split(records[0])}")


def memory_metric(records: Iterable[Record]) -> Metric:
    """The memory metric known for all of ``records``: of the process by NVML as in nvidia-smi, else torch's, else the host's."""
    with_rounds = [record for record in records if record.rounds]
    return next((metric for metric in MEMORY_METRICS if all(metric.values(record) for record in with_rounds)), HOST_MEMORY)


def gpu_memory_metric(records: Iterable[Record]) -> Metric:
    """Like ``memory_metric``, but never the host's: on CPU the process's GPU memory, which then has no value."""
    metric = memory_metric(records)
    return PROCESS_MEMORY if metric is HOST_MEMORY else metric


def time_or_speed_metric(records: Iterable[Record]) -> Metric:
    """The time of a training, or the speed if ``records`` hold trainings of different length."""
    return SECONDS if len({_training_length(record) for record in records if record.rounds}) < 2 else SAMPLES_PER_S


def _training_length(record: Record) -> tuple[str, int]:
    """The epochs, however many steps they have, or else the steps."""
    return ("epochs", record.config.epochs) if record.config.epochs else ("steps", record.rounds[0].traces[0].steps)


def _clipped_t_interval(values: Sequence[float]) -> Interval:
    """The mean of ``values`` with its 95% t-interval, clipped to the range from 0 to 1."""
    found = t_interval(values)
    return Interval(found.center, max(0.0, found.low), min(1.0, found.high))


def _step_samples_per_s(timed: Round) -> list[float]:
    """Images/s of every step, over all ranks; a step lasts as long as on its slowest rank."""
    samples = timed.samples / max(trace.steps for trace in timed.traces)
    step_times_ms = zip(*([fsum(parts) for parts in zip(*trace.phases_ms.values(), strict=True)] for trace in timed.traces), strict=False)
    return [1000 * samples / max(step_ms) for step_ms in step_times_ms if max(step_ms) > 0]


def _accuracy(timed: Round) -> float | None:
    """The accuracy over all ranks, which every rank holds."""
    return timed.traces[0].numerics.accuracy


def _max_over_ranks(value_of: Callable[[Memory], int | None]) -> Callable[[Round], float | None]:
    """The greatest value of any rank."""
    return lambda timed: max(drop_none(value_of(trace.memory) for trace in timed.traces), default=None)


def _mean_over_ranks(value_of: Callable[[Numerics], float | None]) -> Callable[[Round], float | None]:
    return lambda timed: mean_or_none(value_of(trace.numerics) for trace in timed.traces)


def _allocated_without_workspaces(memory: Memory) -> int | None:
    return None if memory.allocated_bytes is None or memory.workspace_bytes is None else memory.allocated_bytes - memory.workspace_bytes


def _host_rss_bytes(memory: Memory) -> int | None:
    return None if memory.host_rss_bytes is None else memory.host_rss_bytes + (memory.workers_rss_bytes or 0)


SECONDS = Metric("seconds", "time of a training", "s", lambda timed: timed.wall_s, is_speed=True)
SAMPLES_PER_S = Metric("speed", "speed", "images/s", lambda timed: timed.samples_per_s, is_speed=True)
MIN_STEP_SAMPLES_PER_S = Metric(
    "least-speed", "minimum speed of a step", "images/s", lambda timed: min(_step_samples_per_s(timed), default=None), is_speed=True
)
MAX_STEP_SAMPLES_PER_S = Metric(
    "greatest-speed", "maximum speed of a step", "images/s", lambda timed: max(_step_samples_per_s(timed), default=None), is_speed=True
)
ACCURACY = Metric("accuracy", "accuracy", "%", _accuracy, scale=0.01, is_fraction=True)
LAST_LOSS = Metric("last-loss", "last loss", "", _mean_over_ranks(lambda numerics: numerics.last_loss), decimals=3)
MEAN_LOSS = Metric("mean-loss", "average loss", "", _mean_over_ranks(lambda numerics: numerics.mean_loss), decimals=3)
ALLOCATED = Metric(
    "allocated", "peak memory that torch allocated", "bytes", _max_over_ranks(lambda memory: memory.allocated_bytes), decimals=0
)
ALLOCATED_WITHOUT_WORKSPACES = Metric(
    "own-allocated",
    "peak memory that torch allocated, without cuBLAS workspaces",
    "bytes",
    _max_over_ranks(_allocated_without_workspaces),
    decimals=0,
)
PROCESS_MEMORY = Metric(
    "memory", "GPU memory of the process, by NVML", "MiB", _max_over_ranks(lambda memory: memory.process_bytes), scale=MIB, decimals=0
)
RESERVED_MEMORY = Metric(
    "memory", "GPU memory that torch reserved", "MiB", _max_over_ranks(lambda memory: memory.reserved_bytes), scale=MIB, decimals=0
)
HOST_MEMORY = Metric(
    "memory", "memory of a rank and its workers on the host", "MiB", _max_over_ranks(_host_rss_bytes), scale=MIB, decimals=0
)
MEMORY_METRICS = (PROCESS_MEMORY, RESERVED_MEMORY, HOST_MEMORY)


def last_accuracy(record: Record | None) -> float | None:
    """The accuracy of the last round, a fraction; None if unknown."""
    values = ACCURACY.values(record) if record else []
    return values[-1] if values else None


def paired_ratio(metric: Metric, base: Record | None, other: Record | None) -> PairedRatio | None:
    """``other`` as a multiple of ``base``, paired by round; None if they share no rounds."""
    if base is None or other is None:
        return None
    base_values, other_values = metric.values_by_round(base), metric.values_by_round(other)
    shared = [index for index in sorted(base_values.keys() & other_values.keys()) if base_values[index] and other_values[index]]
    return ratio_of([base_values[index] for index in shared], [other_values[index] for index in shared]) if shared else None


def speedup(base: Record | None, other: Record | None) -> PairedRatio | None:
    """The speed of ``other`` as a multiple of ``base``, in images/s, since trainings may differ in length."""
    return paired_ratio(SAMPLES_PER_S, base, other)
