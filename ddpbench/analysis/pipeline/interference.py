"""How much the loader slows training down.

Measured by a control run or, for CPU ranks, derived from who got the cores.
"""

from __future__ import annotations

from math import fsum, inf

from ddpbench.analysis.controls import step_s, step_time_ratio
from ddpbench.analysis.cpu_demand import (
    MIN_FAIR_FRACTION,
    CpuDemand,
    cores_per_trainer,
    cpu_demand,
    min_busy_cores,
    traces_on_host,
    worker_cpu_s,
)
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.node_cpu_usage import node_cpu_usage
from ddpbench.analysis.pipeline.model import PipelineModel, pipeline_model
from ddpbench.analysis.ranks import COMPUTE_PHASES
from ddpbench.analysis.stats import PairedRatio
from ddpbench.analysis.summary import BOTTLENECK_FRACTION
from ddpbench.record.bottleneck import CoresTakenByWorkers, LoaderInBackground
from ddpbench.record.loaders import loader_spec
from ddpbench.record.record import Record


def find_interference(inputs: AnalysisInput) -> LoaderInBackground | CoresTakenByWorkers | None:
    """Return how much the loader slows training down if it costs more of a step than the wait for data, and than the starts of epochs.

    A loader that could not keep up even with the machine to itself only takes what it needs: if the run waits for data, data is the
    bottleneck. The exception: both use the device, and sharing it costs a step more than the loader's own slowness.
    """
    pipeline = pipeline_model(inputs)
    is_slow = (
        pipeline.data_wait_fraction >= BOTTLENECK_FRACTION
        and pipeline.loader_rate is not None
        and pipeline.loader_rate < pipeline.device_rate
    )
    if is_slow and not (decodes_on_device(inputs.record) and _sharing_costs_more(pipeline)):
        return None
    slowdown = step_time_ratio(inputs.controls.loader_in_background, inputs.controls.compute_only)
    if slowdown is not None:
        return _from_control_run(inputs, slowdown)
    return _from_cpu_usage(inputs)


def decodes_on_device(record: Record) -> bool:
    return record.environment.device_type == "cuda" and loader_spec(record.config.loader).needs_gpu


def _sharing_costs_more(pipeline: PipelineModel) -> bool:
    """Whether sharing the device costs more time per image than the loader alone takes beyond the training."""
    loader_s, device_s, achieved_s = (1 / (rate or inf) for rate in (pipeline.loader_rate, pipeline.device_rate, pipeline.achieved_rate))
    return achieved_s - loader_s > loader_s - device_s


def _from_control_run(inputs: AnalysisInput, slowdown: PairedRatio) -> LoaderInBackground | None:
    """Compare compute-only steps with and without the loader in the background.

    A loader that decodes on the device is itself slowed down by the training, so the wait for data is then no separate bottleneck.
    """
    device_s = step_s(inputs.controls.compute_only)
    if device_s is None:
        return None
    with_loader_ms, device_ms = 1000 * slowdown.center * device_s, 1000 * device_s
    extra_ms = min(with_loader_ms, inputs.step_ms) - device_ms
    wait_ms = max(inputs.data_wait_ms, inputs.summary.epoch_start_ms)
    if extra_ms < BOTTLENECK_FRACTION * device_ms or (extra_ms < wait_ms and not decodes_on_device(inputs.record)):
        return None
    return LoaderInBackground(
        slowdown_fraction=slowdown.center - 1,
        compute_only_ms=device_ms,
        with_loader_ms=with_loader_ms,
        data_wait_ms=inputs.data_wait_ms,
        step_ms=inputs.step_ms,
    )


def _from_cpu_usage(inputs: AnalysisInput) -> CoresTakenByWorkers | None:
    """Find CPU ranks that got too few cores while this job alone keeps all of them busy."""
    record, node = inputs.record, cpu_demand(inputs.record)
    traces, usage, needed_cores = (
        traces_on_host(record, node.host),
        node_cpu_usage(record, node.host),
        min_busy_cores(node.threads_per_rank),
    )
    rank_cores = cores_per_trainer(traces)
    if record.environment.device_type != "cpu" or usage is None or rank_cores is None or usage.is_shared or not usage.is_saturated:
        return None
    worker_cores = fsum(map(worker_cpu_s, traces)) / fsum(timed.wall_s for timed in record.rounds)
    if (
        node.trainer_cores > node.usable_cores
        or worker_cores < BOTTLENECK_FRACTION * node.usable_cores
        or starved_ms(inputs, node) < max(inputs.max_wait_ms, inputs.summary.epoch_start_ms)
    ):
        return None
    return CoresTakenByWorkers(
        slowdown_fraction=needed_cores / max(rank_cores, 0.01) - 1,
        rank_cores=rank_cores,
        needed_cores=needed_cores,
        worker_cores=worker_cores,
        usable_cores=node.usable_cores,
    )


def starved_ms(inputs: AnalysisInput, node: CpuDemand) -> float:
    """Milliseconds per step that a rank of ``node`` computes longer because it got too few cores.

    0 if it got its share.
    """
    rank_cores, needed_cores = cores_per_trainer(traces_on_host(inputs.record, node.host)), min_busy_cores(node.threads_per_rank)
    if rank_cores is None or rank_cores >= MIN_FAIR_FRACTION * needed_cores:
        return 0.0
    return (1 - rank_cores / needed_cores) * fsum(inputs.summary.phases_ms[phase] for phase in COMPUTE_PHASES)
