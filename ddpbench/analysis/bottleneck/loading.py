"""Bottlenecks outside the training itself: its data, its CPU cores, and its share of the GPU."""

from __future__ import annotations

from math import sqrt

from ddpbench.analysis.bottleneck.training import launch_bound, sync_bound
from ddpbench.analysis.collective_wait import exposed_comm_ms
from ddpbench.analysis.controls import step_s, step_time_ratio
from ddpbench.analysis.cpu_demand import MIN_FAIR_FRACTION, cpu_demand, starved_ranks
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.node_cpu_usage import NodeCpuUsage, busiest_node
from ddpbench.analysis.pipeline.interference import decodes_on_device, find_interference, starved_ms
from ddpbench.analysis.pipeline.model import PipelineModel, pipeline_model
from ddpbench.analysis.pipeline.root_cause import BUSY_WORKER_FRACTION, find_root_cause
from ddpbench.analysis.summary import BOTTLENECK_FRACTION
from ddpbench.record.bottleneck import (
    BatchPreparation,
    CopyWait,
    CoresTakenByOthers,
    DataWait,
    DecodesOnDevice,
    EpochStarts,
    HostBatches,
    StarvedRanks,
)
from ddpbench.record.verdict import Verdict

MIN_CORE_WAIT_SLOWDOWN = 1.2
"""Workers that take this many times as long as they work are waiting for a core."""


def loader_contends_cpu(inputs: AnalysisInput) -> Verdict | None:
    found = None if decodes_on_device(inputs.record) else find_interference(inputs)
    return Verdict(kind="loader-contends-cpu", evidence=found) if found else None


def loader_contends_gpu(inputs: AnalysisInput) -> Verdict | None:
    found = find_interference(inputs) if decodes_on_device(inputs.record) else None
    return Verdict(kind="loader-contends-gpu", evidence=found) if found else None


def noisy_neighbour(inputs: AnalysisInput) -> Verdict | None:
    """Other processes take the cores: by CPU monitoring if there is any, else by the cores that computing ranks got."""
    record = inputs.record
    busy = busiest_node(record)
    if busy is not None:
        return _measured_neighbour(inputs, busy)
    starved = starved_ranks(record)
    if not starved:
        return None
    demand = cpu_demand(record)
    evidence = StarvedRanks(cores_by_rank=dict(starved), job_cores=demand.cores, usable_cores=demand.usable_cores)
    return Verdict(kind="noisy-neighbour", evidence=evidence, rank=next(iter(starved)) if len(starved) == 1 else None)


def epoch_start_bound(inputs: AnalysisInput) -> Verdict | None:
    """The workers of a script start at every epoch, and what it waits for that is more than for other batches."""
    record, start_ms = inputs.record, inputs.summary.epoch_start_ms
    if start_ms < max(BOTTLENECK_FRACTION * inputs.step_ms, inputs.data_wait_ms) or _communicates_longer(inputs, start_ms):
        return None
    batches = record.script.epoch_batches if record.script else None
    evidence = EpochStarts(
        fraction=start_ms / inputs.step_ms,
        start_s=start_ms * batches / 1000 if batches else None,
        epoch_s=inputs.step_ms * batches / 1000 if batches else None,
        workers=record.workers,
        keeps_workers=record.data is not None and not record.data.respawns_workers,
    )
    return Verdict(kind="epoch-start-bound", evidence=evidence)


def data_bound(inputs: AnalysisInput) -> Verdict | None:
    """Devices wait for data, or trainer processes on CPU spend their time on preparing batches.

    If compute-only training was measured, it must also be faster than the run.
    """
    record, wait_fraction = inputs.record, inputs.summary.data_wait_fraction
    slowdown = step_time_ratio(record, inputs.controls.compute_only)
    if (
        wait_fraction is None
        or wait_fraction < BOTTLENECK_FRACTION
        or (slowdown is not None and slowdown.center < 1 + BOTTLENECK_FRACTION / 2)
        or _communicates_longer(inputs, inputs.data_wait_ms)
    ):
        return trainer_bound(inputs)
    if decodes_on_device(record) and inputs.controls.compute_only is None:
        # forward and backward slowed down by decoding do not show what the GPU could train
        return Verdict(kind="inconclusive", evidence=DecodesOnDevice(wait_fraction=wait_fraction))
    pipeline = pipeline_model(inputs)
    could_train = pipeline.device_rate
    if slowdown is not None and could_train <= pipeline.achieved_rate:  # by sums of rounds that vary, though not by pairs of them
        could_train = slowdown.center * pipeline.achieved_rate
    evidence = DataWait(wait_fraction=wait_fraction, loader_samples_per_s=pipeline.achieved_rate, device_samples_per_s=could_train)
    found = find_root_cause(pipeline)
    return Verdict(kind="data-bound", evidence=evidence, cause=found.cause, cause_evidence=found.evidence)


def host_to_device_bound(inputs: AnalysisInput) -> Verdict | None:
    """Devices wait for the copy, or steps on batches in host memory take longer than those on batches on the device.

    None on CPU, where nothing is copied.
    """
    record, copy_ms = inputs.record, inputs.summary.phases_ms["host_to_device"]
    if record.environment.device_type != "cuda":
        return None
    bandwidth = inputs.controls.diagnosis.h2d_bandwidth if inputs.controls.diagnosis else None
    if copy_ms >= BOTTLENECK_FRACTION * inputs.step_ms:
        measured = None if record.config.pin_memory else bandwidth
        copy_wait = CopyWait(
            copy_ms=copy_ms,
            step_ms=inputs.step_ms,
            pageable_bytes_per_s=measured.pageable_bytes_per_s if measured else None,
            pinned_bytes_per_s=measured.pinned_bytes_per_s if measured else None,
        )
        return Verdict(kind="host-to-device-bound", evidence=copy_wait)
    device_s, slowdown = step_s(inputs.controls.compute_only), step_time_ratio(inputs.controls.replay, inputs.controls.compute_only)
    if device_s is None or slowdown is None or slowdown.center < 1 + BOTTLENECK_FRACTION:
        return None
    extra_ms = 1000 * device_s * (slowdown.center - 1)
    host_batches = HostBatches(slowdown_fraction=slowdown.center - 1, extra_ms=extra_ms, step_ms=1000 * device_s + extra_ms)
    return Verdict(kind="host-to-device-bound", evidence=host_batches)


def _communicates_longer(inputs: AnalysisInput, wait_ms: float) -> bool:
    """Whether gradient sync, waits for late ranks aside, takes more of a step than ``wait_ms``."""
    return inputs.record.uses_ddp and exposed_comm_ms(inputs.record.rounds) > wait_ms and sync_bound(inputs) is not None


def trainer_bound(inputs: AnalysisInput) -> Verdict | None:
    """CPU ranks finish batches themselves, in the phase in which GPUs wait for a copy."""
    record, spent_ms = inputs.record, inputs.summary.phases_ms["host_to_device"]
    if record.environment.device_type != "cpu" or spent_ms < BOTTLENECK_FRACTION * inputs.step_ms:
        return None
    return Verdict(kind="data-bound", evidence=BatchPreparation(prepare_ms=spent_ms, step_ms=inputs.step_ms), cause="handoff")


def _measured_neighbour(inputs: AnalysisInput, usage: NodeCpuUsage) -> Verdict | None:
    """Others use saturated cores, take more of them than the job itself lacks, and the job is seen to wait for cores."""
    if not (usage.is_shared and usage.is_saturated and usage.other_cores + usage.job_cores >= usage.cores * MIN_FAIR_FRACTION):
        return None
    pipeline, demand = pipeline_model(inputs), cpu_demand(inputs.record)
    waits_for_data = pipeline.data_wait_fraction >= BOTTLENECK_FRACTION and pipeline.core_bound_rate
    shortfall = max(
        demand.trainer_cores / demand.usable_cores,
        pipeline.device_rate / pipeline.core_bound_rate if waits_for_data and pipeline.core_bound_rate else 1.0,
    )
    if usage.cores / max(usage.cores - usage.other_cores, 0.1) < shortfall or not _waits_for_core(inputs):
        return None
    busy_before = [
        each.other_busy_cores
        for each in (inputs.controls.diagnosis.node_states if inputs.controls.diagnosis else [])
        if each.host == usage.host
    ]
    evidence = CoresTakenByOthers(
        cores=usage.cores,
        other_cores=usage.other_cores,
        job_cores=usage.job_cores,
        other_cores_before=busy_before[0] or None if busy_before else None,
    )
    return Verdict(kind="noisy-neighbour", evidence=evidence)


def _waits_for_core(inputs: AnalysisInput) -> bool:
    """Whether most of what the run waits for is a core: in its workers, or in its trainer processes."""
    record, pipeline = inputs.record, pipeline_model(inputs)
    if pipeline.data_wait_fraction >= BOTTLENECK_FRACTION and _workers_wait_for_core(pipeline):
        return True
    if record.environment.device_type == "cuda":
        return launch_bound(inputs) is not None
    return starved_ms(inputs, cpu_demand(record)) >= inputs.max_wait_ms


def _workers_wait_for_core(pipeline: PipelineModel) -> bool:
    """Whether the run waits for its workers, and they would close most of the gap if they always had a core."""
    if pipeline.worker_busy_fraction is not None and pipeline.worker_busy_fraction < BUSY_WORKER_FRACTION:
        return False
    if pipeline.cost is None:
        return False
    if pipeline.cost.runqueue_wait_s is None:
        return pipeline.cost.slowdown >= MIN_CORE_WAIT_SLOWDOWN
    speedup = pipeline.cost.wall_s / max(pipeline.cost.uncontended_wall_s(), 1e-9)
    return speedup >= max(MIN_CORE_WAIT_SLOWDOWN, sqrt(pipeline.device_rate / pipeline.achieved_rate))
