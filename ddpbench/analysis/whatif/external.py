"""Measurements of other loaders, precisions and batch sizes on the same devices, for a what-if query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpbench.analysis.compare import same_devices
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.disturbance import without_disturbed
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.whatif.measured import delivery_ratio, step_times_s
from ddpbench.record.diagnosis import AlternativeLoader
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import COMPUTE_ONLY, LOADER_IN_BACKGROUND, RUN


@dataclass(frozen=True)
class ExternalMeasurements:
    """Measurements from other records, or from the diagnosis itself.

    ``candidates`` is keyed by loader and fraction that the GPU's hardware decoder decodes, None if not given. ``step_times_s`` is in
    seconds, by round and step, on batches that are already on the device; keyed by precision, images per rank and compile mode.
    """

    candidates: Mapping[tuple[str, float | None], AlternativeLoader] = field(default_factory=dict)
    step_times_s: Mapping[tuple[str, int, str], Sequence[Sequence[float]]] = field(default_factory=dict)


def own_measurements(inputs: AnalysisInput) -> ExternalMeasurements:
    """Return the alternative loaders that the diagnosis measured, and the steps of its compute-only run."""
    diagnosis, compute_only = inputs.controls.diagnosis, inputs.controls.compute_only
    candidates = diagnosis.alternative_loaders if diagnosis else []
    return ExternalMeasurements(_by_setting(candidates), {_step_key(compute_only): step_times_s(compute_only)} if compute_only else {})


def collect_measurements(job: Job, others: Sequence[Job] = ()) -> ExternalMeasurements:
    """Return what ``job`` measured with other settings, and what ``others`` add to it.

    Raises UsageError if one of ``others`` has another workload, image size or other devices.
    """
    baseline = baseline_of(job) or job.records[0]
    candidates: list[AlternativeLoader] = []
    steps: dict[tuple[str, int, str], Sequence[Sequence[float]]] = {}
    for other in (*reversed(others), job):
        for record in other.records:
            _require_comparable(record, baseline, other is job)
            candidates += [_candidate_from_arm(record)] if record.loader_benchmarks else []
            is_step = record.config.loader == SYNTHETIC and record.rounds and record.role in (RUN, COMPUTE_ONLY)
            if is_step and _runs_same_kernels(record, baseline):
                steps[_step_key(record)] = step_times_s(without_disturbed(record))
        candidates += other.diagnosis.alternative_loaders if other.diagnosis else []
        if other is not job and other.diagnosis and other.diagnosis.loader_benchmarks:
            candidates.append(_candidate_from_diagnosis(other))
    return ExternalMeasurements(_by_setting(candidates), steps)


def _by_setting(candidates: Sequence[AlternativeLoader]) -> dict[tuple[str, float | None], AlternativeLoader]:
    """Index by setting; of several with the same setting the last wins."""
    return {(each.loader, each.hw_decoder_load): each for each in candidates}


def _runs_same_kernels(record: Record, baseline: Record) -> bool:
    """Whether both have the same settings that change the kernels of a step, or how they are launched, and that no scenario changes."""
    ours, other = record.config, baseline.config
    names = ["fused_kernels", "cuda_graph", "cudnn_benchmark_limit", "optimizer_impl"]
    if "off" not in (ours.compile, other.compile):
        names.append("combo_kernels")
    return all(getattr(ours, name) == getattr(other, name) for name in names)


def _step_key(record: Record) -> tuple[str, int, str]:
    return record.config.precision, record.config.batch_size, record.config.compile


def _candidate_from_arm(record: Record) -> AlternativeLoader:
    config = record.config
    return AlternativeLoader(
        loader=config.loader, workers=record.workers, hw_decoder_load=config.hw_decoder_load, loader_benchmarks=record.loader_benchmarks
    )


def _candidate_from_diagnosis(job: Job) -> AlternativeLoader:
    assert job.diagnosis is not None
    background = [without_disturbed(record) for record in job.records if record.role == LOADER_IN_BACKGROUND and record.rounds]
    spans = [1000 * span for record in background for each in step_times_s(record) for span in each]
    baseline = baseline_of(job) or job.records[0]
    return AlternativeLoader(
        loader=job.diagnosis.loader,
        workers=baseline.workers,
        hw_decoder_load=baseline.config.hw_decoder_load,
        loader_benchmarks=job.diagnosis.loader_benchmarks,
        background_step_ms=spans,
        delivery_ratio=delivery_ratio([timed for record in background for timed in record.rounds]),
    )


def _require_comparable(record: Record, baseline: Record, is_same_job: bool) -> None:
    if is_same_job:
        return
    config, other_config = baseline.config, record.config
    if (config.workload, config.image_size) != (other_config.workload, other_config.image_size):
        raise UsageError(
            f"cannot combine records of {config.workload} at {config.image_size} px "
            f"and {other_config.workload} at {other_config.image_size} px",
            "use records of one workload and image size",
        )
    if not same_devices(record, baseline):
        raise UsageError("cannot combine records of different devices, or of different numbers of devices", "use records of one machine")
