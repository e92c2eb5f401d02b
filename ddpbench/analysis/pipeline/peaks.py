"""What each part of a data pipeline can give on its own, beside what the device could train."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.controls import step_s, step_time_ratio
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline import rates
from ddpbench.analysis.pipeline.model import PipelineModel
from ddpbench.analysis.ratio import PairedRatio


@dataclass(frozen=True)
class PipelineCeilings:
    """Images/s of one rank; None where they were not measured, or do not apply."""

    compute_only: float | None  # on batches that lie there
    independent: float | None  # the same with every rank for itself
    replay: float | None  # on batches that are ready in the host's memory
    pinned_copy: float | None  # copies, from page-locked memory
    pageable_copy: float | None
    loader_only: float | None  # the loader with nobody training, the slowest rank
    loader_only_single_rank: float | None  # rank 0's with the others idle
    cached_files: float | None  # files that lie in memory
    uncached_files: float | None  # files that lie on the storage
    workers: float | None  # of the workers there are, all busy
    cores: float | None  # of the cores there are
    achieved: float  # the run itself
    interference: PairedRatio | None  # how many times as long a step takes with the loader beside it
    utilization: float | None  # AU


def pipeline_ceilings(inputs: AnalysisInput, pipeline: PipelineModel) -> PipelineCeilings:
    around, batch = inputs.controls, inputs.record.config.batch_size
    diagnosis = around.diagnosis
    copies, storage = (diagnosis.h2d_bandwidth, diagnosis.storage) if diagnosis else (None, None)
    device_s = step_s(around.compute_only)

    def rate(seconds: float | None) -> float | None:
        return rates.device_rate(batch, seconds) if seconds else None

    return PipelineCeilings(
        compute_only=rate(device_s),
        independent=rate(step_s(around.independent)),
        replay=rate(step_s(around.replay)),
        pinned_copy=rates.copy_rate(copies.pinned_bytes_per_s, copies.bytes_per_image) if copies else None,
        pageable_copy=rates.copy_rate(copies.pageable_bytes_per_s, copies.bytes_per_image) if copies else None,
        loader_only=pipeline.measured_loader_rate,
        loader_only_single_rank=diagnosis.single_rank_loader_benchmark.images_per_s
        if diagnosis and diagnosis.single_rank_loader_benchmark
        else None,
        cached_files=rates.storage_rate(pipeline.ranks_per_node, 1.0, storage.warm_files_per_s, None) if storage else None,
        uncached_files=rates.storage_rate(pipeline.ranks_per_node, 0.0, None, storage.cold_files_per_s) if storage else None,
        workers=pipeline.worker_bound_rate if pipeline.workers else None,
        cores=pipeline.core_bound_rate,
        achieved=pipeline.achieved_rate,
        interference=step_time_ratio(around.loader_in_background, around.compute_only),
        utilization=rates.accelerator_utilization(device_s, inputs.step_ms / 1000) if device_s else None,
    )
