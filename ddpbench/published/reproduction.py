"""Compare each row of a published table with the record that repeats it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddpbench.analysis.metrics import (
    ACCURACY,
    ALLOCATED,
    ALLOCATED_WITHOUT_WORKSPACES,
    LAST_LOSS,
    MAX_STEP_SAMPLES_PER_S,
    MEAN_LOSS,
    MIN_STEP_SAMPLES_PER_S,
    SAMPLES_PER_S,
    SECONDS,
    MeanStd,
    Metric,
    gpu_memory_metric,
    mean_std,
)
from ddpbench.published.publications import Publication, PublishedExperiment, PublishedMean, PublishedRow, load_publication
from ddpbench.published.sweep_points import is_quick, match_row, matching_records
from ddpbench.record.record import Job, Record


@dataclass(frozen=True)
class FigureComparison:
    """One figure of a row, in the unit of ``metric.values``.

    ``ratio`` is here over published; None if they may not be compared.
    """

    metric: Metric
    published: MeanStd | None
    measured: MeanStd | None
    ratio: float | None


@dataclass(frozen=True)
class RowResult:
    """A published row and the record that repeats it, None if the job has none."""

    experiment: PublishedExperiment
    row: PublishedRow
    record: Record | None
    figures: Mapping[str, FigureComparison]  # by metric name


def compare_rows(name: str, job: Job) -> list[RowResult]:
    """Compare every row of the published experiment ``name`` with ``job``, in its order."""
    return [
        _compare_row(experiment, row, job) for experiment in load_publication(name).experiments for row in experiment.rows if row.precision
    ]


def protocol_deviations(job: Job) -> list[str]:
    """How this job deviates from the published protocol, one sentence each."""
    return [*_deviations(job)] if job.records else []


def substituted_workloads(publication: Publication, job: Job) -> dict[str, str]:
    """Published workload -> the smaller one that replaces it in ``job``."""
    published = [each.workload for each in publication.experiments if any(row.precision for row in each.rows)]
    substitutes = {workload: record.config.workload for workload in published for record in matching_records(job, workload)}
    return {workload: other for workload, other in substitutes.items() if other != workload}


def _deviations(job: Job) -> Iterator[str]:
    if is_quick(job):
        configs = [record.config for record in job.records]
        scale = ["static loss scale 1"] if any(config.static_loss_scale == 1 for config in configs) else []
        layout = ["channels-last layout"] if any(config.channels_last for config in configs) else []
        changed = "; ".join(filter(None, ["batch, depth, width or iterations are reduced", ", ".join(scale + layout)]))
        yield f"quick: {changed}: no ratios to published figures, and all claims stay open"
    if any(record.data and record.data.generated for record in job.records):
        yield "generated data: accuracy and loss only show that training converges"
    if all(record.environment.device_type != "cuda" for record in job.records):
        yield "CPU ranks: no GPU memory and no tensor cores"
    if (ranks := job.records[0].world_size) > 1:
        yield f"{ranks} ranks: every step trains on {ranks} times the batch"


def _compare_row(experiment: PublishedExperiment, row: PublishedRow, job: Job) -> RowResult:
    record, memory_metric = match_row(row, experiment, job), gpu_memory_metric(matching_records(job, experiment.workload))
    compared_metrics = {
        metric for each in experiment.rows for metric, figure in _figures(each, memory_metric).items() if figure is not None
    }
    if not any(ALLOCATED_WITHOUT_WORKSPACES.values(each) for each in matching_records(job, experiment.workload)):
        compared_metrics.discard(ALLOCATED_WITHOUT_WORKSPACES)
    figures = {
        metric.name: _compare_figure(metric, _mean_std_of(figure, metric), record, comparable=not is_quick(job))
        for metric, figure in _figures(row, memory_metric).items()
        if metric in compared_metrics
    }
    return RowResult(experiment, row, record, figures)


def _compare_figure(metric: Metric, published: MeanStd | None, record: Record | None, comparable: bool) -> FigureComparison:
    measured = mean_std(metric.values(record)) if record else None
    ratio = measured.mean / published.mean if comparable and measured and published and published.mean else None
    return FigureComparison(metric, published, measured, ratio)


def _figures(row: PublishedRow, memory_metric: Metric) -> dict[Metric, float | PublishedMean | None]:
    """Every figure that a row can hold, in the unit that its source prints."""
    return {
        SECONDS: row.seconds,
        SAMPLES_PER_S: row.images_per_s,
        MIN_STEP_SAMPLES_PER_S: row.min_images_per_s,
        MAX_STEP_SAMPLES_PER_S: row.max_images_per_s,
        memory_metric: row.memory_mib,
        ALLOCATED: row.max_memory_allocated_bytes,
        ALLOCATED_WITHOUT_WORKSPACES: row.max_memory_allocated_bytes,
        ACCURACY: row.accuracy_percent or row.val_accuracy_percent,
        LAST_LOSS: row.last_loss,
        MEAN_LOSS: row.mean_loss,
    }


def _mean_std_of(figure: float | PublishedMean | None, metric: Metric) -> MeanStd | None:
    if figure is None:
        return None
    scale = metric.scale  # sources print in the units of the metrics
    return MeanStd(figure.mean * scale, figure.std * scale) if isinstance(figure, PublishedMean) else MeanStd(figure * scale)
