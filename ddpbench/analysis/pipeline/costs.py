"""What an image costs in the workers of a loader, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ddpbench.record.diagnosis import Alone, Diagnosis
from ddpbench.record.loader_stats import STAGES, Loading
from ddpbench.record.loaders import spec_of
from ddpbench.record.record import Record

READ = "read"


@dataclass(frozen=True)
class Cost:
    """Seconds an image by stage: of a core, and on the clock of its worker."""

    cpu: Mapping[str, float]
    wall: Mapping[str, float]
    queued_s: float | None = None  # of the wall, what its worker waited for a core

    @property
    def cpu_s(self) -> float:
        return fsum(self.cpu.values())

    @property
    def wall_s(self) -> float:
        return fsum(self.wall.values())

    @property
    def standing(self) -> float:
        """How many times as long as it works a worker takes for what needs nothing but a core: 1 where it always has one."""
        if self.queued_s is not None:
            return 1 + self.queued_s / self.cpu_s if self.cpu_s > 0 else 1.0
        working = fsum(span for stage, span in self.cpu.items() if stage != READ)
        passing = fsum(span for stage, span in self.wall.items() if stage != READ)
        return max(1.0, passing / working) if working > 0 else 1.0

    @property
    def read_wait_s(self) -> float:
        """Seconds an image for which a worker waits for the file; what it waits there for a core is left out."""
        reading_s = self.wall.get(READ, 0.0) - self.cpu.get(READ, 0.0)
        if self.elsewhere_s is not None:
            return max(0.0, min(reading_s, self.elsewhere_s))
        return max(0.0, self.wall.get(READ, 0.0) - self.standing * self.cpu.get(READ, 0.0))

    @property
    def elsewhere_s(self) -> float | None:
        """Seconds an image for which a worker waits for what is no core: a file, a lock, an answer. None where nobody told."""
        return None if self.queued_s is None else max(0.0, self.wall_s - self.cpu_s - self.queued_s)

    @property
    def mostly_elsewhere(self) -> bool:
        """Whether that is at least half of its time."""
        return self.elsewhere_s is not None and self.elsewhere_s >= self.wall_s / 2

    def wall_with_a_core_s(self) -> float:
        """Seconds an image in a worker that always has a core: its work, and its waits for files."""
        if self.queued_s is not None:
            return self.wall_s - self.queued_s
        return self.cpu_s + max(0.0, self.wall.get(READ, 0.0) - self.cpu.get(READ, 0.0)) / self.standing

    def without_s(self, stage: str) -> float:
        """Seconds of a core an image, were that stage free."""
        return self.cpu_s - self.cpu.get(stage, 0.0)

    @property
    def most_costly(self) -> str:
        return max(self.cpu, key=lambda stage: self.cpu[stage])


def cost_of(loadings: Iterable[Loading | None]) -> Cost | None:
    """The mean over all images; None where no stage was timed."""
    there = [each for each in loadings if each is not None and each.images and each.cpu_s]
    images = sum(each.images for each in there)
    if not images:
        return None
    stages = [stage for stage in STAGES if any(stage in each.cpu_s for each in there)]
    cpu = {stage: fsum(each.cpu_s.get(stage, 0.0) for each in there) / images for stage in stages}
    wall = {stage: fsum(each.wall_s.get(stage, each.cpu_s.get(stage, 0.0)) for each in there) / images for stage in stages}
    queued = None if any(each.queued_s is None for each in there) else fsum(each.queued_s or 0.0 for each in there) / images
    return Cost(cpu, wall, queued) if fsum(wall.values()) > 0 else None


def cost_of_run(record: Record, diagnosis: Diagnosis | None = None) -> Cost | None:
    """As it was while training; else with nobody training; else by the stages, measured apart, which have no waits."""
    while_training = cost_of(trace.loading for trace in record.traces)
    if while_training or diagnosis is None:
        return while_training
    alone = cost_of(each.loading for each in diagnosis.alone)
    if alone or not diagnosis.stages:
        return alone
    on_device = spec_of(record.config.loader).on_device
    times = 1.0 if on_device else _times_under_load(fsum(diagnosis.stages.values()), diagnosis.alone)
    stages = {stage: times * span for stage, span in diagnosis.stages.items()}
    return Cost(stages, stages)


def costs_of_ranks(record: Record, diagnosis: Diagnosis | None = None) -> list[Cost]:
    """On each rank by itself: as it was while training, else with nobody training; empty where no rank tells."""
    told = [cost_of(trace.loading for trace in traces) for traces in record.traces_by_rank.values()]
    if not any(told) and diagnosis is not None:
        told = [cost_of([each.loading]) for each in diagnosis.alone]
    return [cost for cost in told if cost]


def _times_under_load(apart_s: float, alone: Sequence[Alone]) -> float:
    """How many times what an image costs of a core with few threads at work, ``apart_s``, it costs with all of the loader's.

    Cores that all work share caches and memory, and often their units: what was measured beside idle ones is too little. Not of
    batches that a GPU makes, whose threads on the host spin while they wait for it.
    """
    images, spent_s = sum(each.images for each in alone), fsum(each.cpu_s for each in alone)
    return spent_s / images / apart_s if images and spent_s and apart_s else 1.0
