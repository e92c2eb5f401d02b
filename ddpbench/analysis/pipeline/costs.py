"""Cost per image in the loader workers, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

from ddpbench.analysis.ranks import drop_none
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark
from ddpbench.record.loader_stats import STAGES, LoaderStats, sum_by_stage
from ddpbench.record.loaders import loader_spec
from ddpbench.record.record import Record
from ddpbench.record.trace import Trace

READ_STAGE = "read"


@dataclass(frozen=True)
class LoaderCost:
    """Seconds per image and stage: CPU time, and wall time in the worker."""

    cpu_s_by_stage: Mapping[str, float]
    wall_s_by_stage: Mapping[str, float]
    runqueue_wait_s: float | None = None  # part of the wall time in which the worker waited for a core; None if unknown

    @property
    def cpu_s(self) -> float:
        return fsum(self.cpu_s_by_stage.values())

    @property
    def wall_s(self) -> float:
        return fsum(self.wall_s_by_stage.values())

    @property
    def slowdown(self) -> float:
        """Wall time over CPU time of the CPU-bound work in a worker; 1 if it always has a core."""
        if self.runqueue_wait_s is not None:
            return 1 + self.runqueue_wait_s / self.cpu_s if self.cpu_s > 0 else 1.0
        cpu_s = fsum(span for stage, span in self.cpu_s_by_stage.items() if stage != READ_STAGE)
        wall_s = fsum(span for stage, span in self.wall_s_by_stage.items() if stage != READ_STAGE)
        return max(1.0, wall_s / cpu_s) if cpu_s > 0 else 1.0

    @property
    def read_wait_s(self) -> float:
        """Seconds per image in which a worker waits for the file, without the wait for a core."""
        reading_s = self.wall_s_by_stage.get(READ_STAGE, 0.0) - self.cpu_s_by_stage.get(READ_STAGE, 0.0)
        if self.blocked_s is not None:
            return max(0.0, min(reading_s, self.blocked_s))
        return max(0.0, self.wall_s_by_stage.get(READ_STAGE, 0.0) - self.slowdown * self.cpu_s_by_stage.get(READ_STAGE, 0.0))

    @property
    def blocked_s(self) -> float | None:
        """Seconds per image in which a worker waits for a file, a lock or a reply, not for a core.

        None if unknown.
        """
        return None if self.runqueue_wait_s is None else max(0.0, self.wall_s - self.cpu_s - self.runqueue_wait_s)

    @property
    def is_mostly_blocked(self) -> bool:
        """Whether ``blocked_s`` is at least half of the wall time; False if unknown."""
        return self.blocked_s is not None and self.blocked_s >= self.wall_s / 2

    def uncontended_wall_s(self) -> float:
        """Wall seconds per image in a worker that always has a core: its work and its waits for files."""
        if self.runqueue_wait_s is not None:
            return self.wall_s - self.runqueue_wait_s
        return self.cpu_s + max(0.0, self.wall_s_by_stage.get(READ_STAGE, 0.0) - self.cpu_s_by_stage.get(READ_STAGE, 0.0)) / self.slowdown

    def cpu_s_without(self, stage: str) -> float:
        """CPU seconds per image without ``stage``."""
        return self.cpu_s - self.cpu_s_by_stage.get(stage, 0.0)

    @property
    def costliest_stage(self) -> str:
        return max(self.cpu_s_by_stage, key=lambda stage: self.cpu_s_by_stage[stage])


def loader_cost(loader_stats: Iterable[LoaderStats | None]) -> LoaderCost | None:
    """Return the mean cost over all images; None if no stage was timed."""
    timed = [each for each in loader_stats if each is not None and each.samples and each.cpu_s]
    samples = sum(each.samples for each in timed)
    if not samples:
        return None
    stages = [stage for stage in STAGES if any(stage in each.cpu_s for each in timed)]
    cpu = {stage: fsum(each.cpu_s.get(stage, 0.0) for each in timed) / samples for stage in stages}
    wall = {stage: fsum(each.wall_s.get(stage, each.cpu_s.get(stage, 0.0)) for each in timed) / samples for stage in stages}
    runqueue_wait_s = (
        None if any(each.runqueue_wait_s is None for each in timed) else fsum(each.runqueue_wait_s or 0.0 for each in timed) / samples
    )
    return LoaderCost(cpu, wall, runqueue_wait_s) if fsum(wall.values()) > 0 else None


def loader_cost_of_run(record: Record, diagnosis: Diagnosis | None = None) -> LoaderCost | None:
    """Cost per image of a run, or None.

    Measured while training, else in the loader benchmark, else from stages timed separately, which have no waits.
    """
    from_training = loader_cost(trace.loader_stats for trace in record.traces)
    if from_training or diagnosis is None:
        return from_training
    from_benchmark = loader_cost(each.loader_stats for each in diagnosis.loader_benchmarks)
    if from_benchmark or not diagnosis.stage_cpu_s:
        return from_benchmark
    on_device = loader_spec(record.config.loader).on_device
    factor = 1.0 if on_device else _load_factor(fsum(diagnosis.stage_cpu_s.values()), diagnosis.loader_benchmarks)
    stages = {stage: factor * span for stage, span in diagnosis.stage_cpu_s.items()}
    return LoaderCost(stages, stages)


def loader_costs_of_ranks(record: Record, diagnosis: Diagnosis | None = None) -> list[LoaderCost]:
    """Cost per image on each rank.

    Measured while training, else in the loader benchmark. Empty if no rank reports any.
    """
    costs = [loader_cost(trace.loader_stats for trace in traces) for traces in record.traces_by_rank.values()]
    if not any(costs) and diagnosis is not None:
        costs = [loader_cost([each.loader_stats]) for each in diagnosis.loader_benchmarks]
    return [cost for cost in costs if cost]


def _load_factor(stages_s: float, benchmarks: Sequence[LoaderBenchmark]) -> float:
    """CPU seconds per image in the loader benchmark over ``stages_s``, those with few threads; 1 if unknown.

    Busy cores share caches, memory and often execution units, so stages timed beside idle cores cost too little. Not meant for loaders
    on the GPU: their host threads spin while they wait for it.
    """
    samples, cpu_s = sum(each.samples for each in benchmarks), fsum(each.loader_cpu_s for each in benchmarks)
    return cpu_s / samples / stages_s if samples and cpu_s and stages_s else 1.0


def sampler_batch_s(record: Record) -> float:
    """Seconds in which a trainer draws the indices of a batch; 0 if that was not timed."""
    timed = [stats for trace in record.traces if (stats := trace.loader_stats) and stats.sampler_s is not None]
    samples = sum(each.samples for each in timed)
    return record.config.batch_size * fsum(each.sampler_s or 0.0 for each in timed) / samples if samples else 0.0


MIN_PART_FRACTION = 0.1
"""A part that takes less of the time of a sample is not named."""


class PartCost(NamedTuple):
    """What one part of loading takes, in wall seconds per image."""

    name: str  # class of a transform, ``decode``, ``collate``; empty for the rest of the dataset
    sample_s: float


def costly_parts(cost: LoaderCost, traces: Iterable[Trace]) -> list[PartCost]:
    """The parts of ``cost`` that take the most, in descending order; empty if no transform was timed."""
    timed = drop_none(trace.loader_stats for trace in traces)
    samples = sum(each.samples for each in timed)
    transforms_s = {name: span / samples for name, span in sum_by_stage(each.parts_s for each in timed).items()} if samples else {}
    if not transforms_s:
        return []
    others_s = {stage: span for stage, span in cost.wall_s_by_stage.items() if stage not in ("sample", "augment")}
    rest_s = cost.wall_s - fsum(others_s.values()) - fsum(transforms_s.values())
    parts = [PartCost(name, span) for name, span in {**transforms_s, **others_s, "": rest_s}.items()]
    return sorted((each for each in parts if each.sample_s >= MIN_PART_FRACTION * cost.wall_s), key=lambda each: -each.sample_s)
