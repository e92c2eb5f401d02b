"""A published table beside this machine's: each row, the cell that repeats it, and how many times the published figure it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddpbench.analysis.metrics import (
    ACCURACY,
    ALLOCATED,
    FASTEST,
    IMAGES_PER_S,
    LAST_LOSS,
    MEAN_LOSS,
    OWN_ALLOCATED,
    SECONDS,
    SLOWEST,
    Measure,
    Spread,
    gpu_memory,
    spread,
)
from ddpbench.published.publications import Experiment, Mean, Publication, Row, load
from ddpbench.published.sweep_points import cells, is_quick, stands_for
from ddpbench.record.record import Job, Record


@dataclass(frozen=True)
class Compared:
    """One figure of a row, in the unit of ``measure.values``. ``ratio`` is here over published; None where they may not be compared."""

    measure: Measure
    published: Spread | None
    here: Spread | None
    ratio: float | None


@dataclass(frozen=True)
class RowResult:
    """A published row, and the cell that repeats it: None where the job holds none."""

    experiment: Experiment
    row: Row
    record: Record | None
    compared: Mapping[str, Compared]  # by the name of the measure


def rows(name: str, job: Job) -> list[RowResult]:
    """Every row of the published experiment ``name``, in its order, beside the cell of ``job`` that repeats it."""
    return [_result(experiment, row, job) for experiment in load(name).experiments for row in experiment.rows if row.precision]


def departures(job: Job) -> list[str]:
    """In what this job is not the published protocol, a sentence each."""
    return [*_departures(job)] if job.records else []


def stand_ins(publication: Publication, job: Job) -> dict[str, str]:
    """The published workloads that a job made smaller, each with the one that stands for it."""
    tabled = [each.workload for each in publication.experiments if any(row.precision for row in each.rows)]
    here = {workload: record.config.workload for workload in tabled for record in cells(job, workload)}
    return {workload: other for workload, other in here.items() if other != workload}


def _departures(job: Job) -> Iterator[str]:
    if is_quick(job):
        configs = [record.config for record in job.records]
        scale = ["static loss scale 1"] if any(config.static_loss_scale == 1 for config in configs) else []
        layout = ["channels-last layout"] if any(config.channels_last for config in configs) else []
        changed = "; ".join(filter(None, ["batch, depth, width or iterations are shrunk", ", ".join(scale + layout)]))
        yield f"quick: {changed}: no ratio to a published figure is given, and no claim settled"
    if any(record.data and record.data.made for record in job.records):
        yield "made data: accuracy and loss say that training converges, no more"
    if all(record.environment.device_type != "cuda" for record in job.records):
        yield "on processors: no memory of a GPU, and tensor cores play no part"
    if (ranks := job.records[0].world_size) > 1:
        yield f"{ranks} ranks: every step trains {ranks} times the batch"


def _result(experiment: Experiment, row: Row, job: Job) -> RowResult:
    record, memory_here = stands_for(row, experiment, job), gpu_memory(cells(job, experiment.workload))
    told = {measure for each in experiment.rows for measure, figure in _figures(each, memory_here).items() if figure is not None}
    if not any(OWN_ALLOCATED.values(each) for each in cells(job, experiment.workload)):
        told.discard(OWN_ALLOCATED)
    compared = {
        measure.name: _compare(measure, _spread_of(figure, measure), record, comparable=not is_quick(job))
        for measure, figure in _figures(row, memory_here).items()
        if measure in told
    }
    return RowResult(experiment, row, record, compared)


def _compare(measure: Measure, published: Spread | None, record: Record | None, comparable: bool) -> Compared:
    here = spread(measure.values(record)) if record else None
    ratio = here.mean / published.mean if comparable and here and published and published.mean else None
    return Compared(measure, published, here, ratio)


def _figures(row: Row, memory_here: Measure) -> dict[Measure, float | Mean | None]:
    """Every figure that a row can hold, in the unit that its source prints."""
    return {
        SECONDS: row.seconds,
        IMAGES_PER_S: row.images_per_s,
        SLOWEST: row.min,
        FASTEST: row.max,
        memory_here: row.memory_mb,
        ALLOCATED: row.max_memory_allocated_bytes,
        OWN_ALLOCATED: row.max_memory_allocated_bytes,
        ACCURACY: row.accuracy_percent or row.val_accuracy,
        LAST_LOSS: row.loss_last,
        MEAN_LOSS: row.loss_average,
    }


def _spread_of(figure: float | Mean | None, measure: Measure) -> Spread | None:
    if figure is None:
        return None
    scale = measure.scale  # sources print the very units of the measures
    return Spread(figure.mean * scale, figure.std * scale) if isinstance(figure, Mean) else Spread(figure * scale)
