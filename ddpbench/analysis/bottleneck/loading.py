"""Bottlenecks outside the training itself: its data, its CPU cores, and its share of the GPU."""

from __future__ import annotations

from math import sqrt

from ddpbench.analysis.bottleneck.training import launch_bound
from ddpbench.analysis.checks.node import format_starved_ranks
from ddpbench.analysis.controls import step_s, step_time_ratio
from ddpbench.analysis.cpu_demand import MIN_FAIR_FRACTION, cpu_demand, starved_ranks
from ddpbench.analysis.evidence import BOTTLENECK_FRACTION
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.node_cpu_usage import NodeCpuUsage, busiest_node
from ddpbench.analysis.pipeline.interference import Interference, decodes_on_device, find_interference, starved_ms
from ddpbench.analysis.pipeline.model import PipelineModel, pipeline_model
from ddpbench.analysis.pipeline.root_cause import BUSY_WORKER_FRACTION, find_root_cause
from ddpbench.analysis.text import device_clause, device_noun
from ddpbench.record.record import Record
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.record.verdict import Verdict

MIN_CORE_WAIT_SLOWDOWN = 1.2
"""Workers that take this many times as long as they work are waiting for a core."""


def loader_steals_cpu(inputs: AnalysisInput) -> Verdict | None:
    found = find_interference(inputs)
    if found is None or found.on_device:
        return None
    return Verdict(
        kind="loader-steals-cpu",
        says=f"the data loader takes the cores that the training needs: {_format_slowdown(found)}",
        why=found.reason,
    )


def loader_steals_gpu(inputs: AnalysisInput) -> Verdict | None:
    found = find_interference(inputs)
    if found is None or not found.on_device:
        return None
    return Verdict(
        kind="loader-steals-gpu",
        says=f"the data loader decodes on the GPU that trains: {_format_slowdown(found)}",
        why=found.reason,
    )


def noisy_neighbour(inputs: AnalysisInput) -> Verdict | None:
    """Other processes take the cores: by CPU monitoring if there is any, else by the cores that computing ranks got."""
    record = inputs.record
    busy = busiest_node(record)
    if busy is not None:
        return _measured_neighbour(inputs, busy)
    kept = starved_ranks(record)
    if not kept:
        return None
    wanted = cpu_demand(record)
    return Verdict(
        kind="noisy-neighbour",
        says=f"other processes seem to take cores: {format_starved_ranks(record)}",
        why=f"the job itself asks for {wanted.cores} of {pluralize(wanted.usable_cores, 'usable core')}, "
        "and hardly waited for data or for other ranks",
        rank=next(iter(kept)) if len(kept) == 1 else None,
    )


def data_bound(inputs: AnalysisInput) -> Verdict | None:
    """Devices wait for data, or trainer processes on CPU spend their time on preparing batches.

    If compute-only training was measured, it must also be faster than the run.
    """
    record, share = inputs.record, inputs.summary.data_wait_fraction
    slower = step_time_ratio(record, inputs.controls.compute_only)
    if share is None or share < BOTTLENECK_FRACTION or (slower is not None and slower.center < 1 + BOTTLENECK_FRACTION / 2):
        return _trainer_bound(inputs)
    if decodes_on_device(record) and inputs.controls.compute_only is None:
        return _slow_or_contending(record, share)
    given, on = pipeline_model(inputs), device_noun(record.environment)
    found = find_root_cause(given, record.sample_unit, on)
    return Verdict(
        kind="data-bound",
        says=f"{device_clause(record, 'wait')} {share:.0%} of every step for data",
        why="; ".join(filter(None, [format_rates(inputs), found.reason])),
        cause=found.name,
    )


def format_rates(inputs: AnalysisInput) -> str:
    """The rates at which the loader delivers and the device could train."""
    given, on = pipeline_model(inputs), device_noun(inputs.record.environment)
    return (
        f"the loader gives {format_3sig(given.achieved_rate)} {inputs.record.sample_unit}s/s a {on}, the {on} "
        f"could train {format_3sig(given.device_rate)}"
    )


def host_to_device_bound(inputs: AnalysisInput) -> Verdict | None:
    """Devices wait for the copy, or steps on batches in host memory take longer than those on batches on the device.

    None on CPU, where nothing is copied.
    """
    record, copy_ms = inputs.record, inputs.summary.phases_ms["host_to_device"]
    if record.environment.device_type != "cuda":
        return None
    copies = inputs.controls.diagnosis.h2d_bandwidth if inputs.controls.diagnosis else None
    if copy_ms >= BOTTLENECK_FRACTION * inputs.step_ms:
        pageable = ""
        if copies is not None and not record.config.pin_memory:
            from_pageable, from_pinned = format_3sig(copies.pageable_bytes_per_s / 1e9), format_3sig(copies.pinned_bytes_per_s / 1e9)
            pageable = f"; from pageable memory {from_pageable} GB/s are copied, from pinned {from_pinned}"
        return Verdict(
            kind="host-to-device-bound",
            says=f"{device_clause(record, 'wait')} {copy_ms / inputs.step_ms:.0%} of every step for batches to be copied",
            why=(
                f"the copy holds the {device_noun(record.environment)} up for {format_3sig(copy_ms)} of "
                f"{format_3sig(inputs.step_ms)} ms{pageable}"
            ),
        )
    device_s, longer = step_s(inputs.controls.compute_only), step_time_ratio(inputs.controls.replay, inputs.controls.compute_only)
    if device_s is None or longer is None or longer.center < 1 + BOTTLENECK_FRACTION:
        return None
    copies_ms = 1000 * device_s * (longer.center - 1)
    return Verdict(
        kind="host-to-device-bound",
        says=f"with batches that are ready in the host's memory a step takes {longer.center - 1:.0%} longer than with those on the "
        f"{device_noun(record.environment)}",
        why=f"it takes {format_3sig(1000 * device_s + copies_ms)} ms, {format_3sig(copies_ms)} of them for copies and the host, "
        "whatever the loader",
    )


def _slow_or_contending(record: Record, share: float) -> Verdict:
    """For a run without control runs: forward and backward slowed down by decoding do not show what the GPU could train."""
    itself = "it decodes" if record.world_size == 1 else "they decode"
    return Verdict(
        kind="inconclusive",
        says=f"{device_clause(record, 'wait')} {share:.0%} of every step for batches that {itself}",
        why="a loader that is too slow and one that takes the GPU from the training look alike from within a run",
    )


def _trainer_bound(inputs: AnalysisInput) -> Verdict | None:
    """CPU ranks finish batches themselves, in the phase in which GPUs wait for a copy."""
    record, spent_ms = inputs.record, inputs.summary.phases_ms["host_to_device"]
    if record.environment.device_type != "cpu" or spent_ms < BOTTLENECK_FRACTION * inputs.step_ms:
        return None
    return Verdict(
        kind="data-bound",
        says=f"{device_clause(record, 'spend')} {spent_ms / inputs.step_ms:.0%} of every step on batches that are not ready to train on",
        why=f"the trainer process itself finishes each batch for {format_3sig(spent_ms)} of {format_3sig(inputs.step_ms)} ms, "
        "and trains none meanwhile",
        cause="hand-over",
    )


def _measured_neighbour(inputs: AnalysisInput, usage: NodeCpuUsage) -> Verdict | None:
    """Others use saturated cores, take more of them than the job itself lacks, and the job is seen to wait for cores."""
    if not (usage.is_shared and usage.is_saturated and usage.other_cores + usage.job_cores >= usage.cores * MIN_FAIR_FRACTION):
        return None
    given, node = pipeline_model(inputs), cpu_demand(inputs.record)
    waits = given.data_wait_fraction >= BOTTLENECK_FRACTION and given.core_bound_rate
    lacking = max(
        node.trainer_cores / node.usable_cores, given.device_rate / given.core_bound_rate if waits and given.core_bound_rate else 1.0
    )
    if usage.cores / max(usage.cores - usage.other_cores, 0.1) < lacking or not _waits_for_core(inputs):
        return None
    before = [
        each.other_busy_cores
        for each in (inputs.controls.diagnosis.node_states if inputs.controls.diagnosis else [])
        if each.host == usage.host
    ]
    already = f"; before anything of it ran they kept {format_3sig(before[0])} busy" if before and before[0] else ""
    return Verdict(
        kind="noisy-neighbour",
        says=f"others keep {format_3sig(usage.other_cores)} of the {usage.cores} cores busy that the job may use, and it waits for them",
        why=(
            f"it got {format_3sig(usage.job_cores)} of them itself, and none was left{already}; others are other processes or, "
            "where this machine is a virtual one, its host"
        ),
    )


def _waits_for_core(inputs: AnalysisInput) -> bool:
    """Whether most of what the run waits for is a core: in its workers, or in its trainer processes."""
    record, given = inputs.record, pipeline_model(inputs)
    if given.data_wait_fraction >= BOTTLENECK_FRACTION and _workers_wait_for_core(given):
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
    faster = pipeline.cost.wall_s / max(pipeline.cost.uncontended_wall_s(), 1e-9)
    return faster >= max(MIN_CORE_WAIT_SLOWDOWN, sqrt(pipeline.device_rate / pipeline.achieved_rate))


def _format_slowdown(interference: Interference) -> str:
    return f"a step takes {interference.slowdown_fraction:.0%} longer beside it"
