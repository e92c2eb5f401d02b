"""The rates of the parts of a pipeline, as the page of a diagnosis shows them."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.controls import MAX_FASTER, step_s, step_time_ratio
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline import rates
from ddpbench.analysis.pipeline.model import PipelineModel, slowest_rate
from ddpbench.analysis.stats import PairedRatio
from ddpbench.analysis.summary import samples_per_step
from ddpbench.record.record import Record


@dataclass(frozen=True)
class PipelineRates:
    """Rates of the parts of the pipeline, in images/s per rank; None if not measured or not applicable."""

    compute_only: float | None  # on batches that are already on the device
    independent: float | None  # the same without gradient sync
    replay: float | None  # on batches that are ready in host memory
    pinned_copy: float | None  # host-to-device copies from pinned memory
    pageable_copy: float | None
    loader_only: float | None  # from the loader benchmark, the slowest rank
    loader_only_single_rank: float | None  # of one rank with the others idle
    loader_only_all_cores: float | None  # with more workers, the slowest rank
    cached_files: float | None  # storage rate with all files in the page cache
    uncached_files: float | None  # storage rate with no file there
    worker_bound: float | None  # of the workers, all busy
    core_bound: float | None  # of the usable cores
    achieved: float  # of the run
    interference: PairedRatio | None  # step time with the loader in the background over compute-only
    utilization: float | None  # AU, a fraction
    is_contradicted: bool = False  # the run was faster than compute only, which is left out


def pipeline_rates(inputs: AnalysisInput, pipeline: PipelineModel) -> PipelineRates:
    """The rate of each part of the pipeline alone, as measured by a diagnosis or computed by ``pipeline``."""
    controls = inputs.controls
    diagnosis = controls.diagnosis
    bandwidth, storage = (diagnosis.h2d_bandwidth, diagnosis.storage) if diagnosis else (None, None)
    device_s = step_s(controls.compute_only)
    is_slower = device_s is not None and 1000 * device_s > MAX_FASTER * inputs.step_ms
    device_s = None if is_slower else device_s

    def rate(control: Record | None) -> float | None:
        seconds = step_s(control)
        return rates.step_rate(samples_per_step(control), seconds) if control and seconds else None

    return PipelineRates(
        compute_only=None if is_slower else rate(controls.compute_only),
        independent=rate(controls.independent),
        replay=rate(controls.replay),
        pinned_copy=rates.copy_rate(bandwidth.pinned_bytes_per_s, bandwidth.bytes_per_sample) if bandwidth else None,
        pageable_copy=rates.copy_rate(bandwidth.pageable_bytes_per_s, bandwidth.bytes_per_sample) if bandwidth else None,
        loader_only=pipeline.measured_loader_rate,
        loader_only_single_rank=diagnosis.single_rank_loader_benchmark.samples_per_s
        if diagnosis and diagnosis.single_rank_loader_benchmark
        else None,
        loader_only_all_cores=slowest_rate(diagnosis.all_cores_loader_benchmarks) if diagnosis else None,
        cached_files=rates.storage_rate(pipeline.ranks_per_node, 1.0, storage.warm_files_per_s, None) if storage else None,
        uncached_files=rates.storage_rate(pipeline.ranks_per_node, 0.0, None, storage.cold_files_per_s) if storage else None,
        worker_bound=pipeline.worker_bound_rate if pipeline.workers else None,
        core_bound=pipeline.core_bound_rate,
        achieved=pipeline.achieved_rate,
        interference=step_time_ratio(controls.loader_in_background, controls.compute_only),
        utilization=rates.accelerator_utilization(device_s, inputs.step_ms / 1000) if device_s else None,
        is_contradicted=controls.is_contradicted or is_slower,
    )
