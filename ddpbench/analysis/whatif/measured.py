"""Pipeline state of the measured run, from which every scenario starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from random import Random
from statistics import fmean

from ddpbench.analysis.controls import extra_step_s, step_s
from ddpbench.analysis.cpu_demand import cpu_demand, worker_cpu_s
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.node_cpu_usage import busiest_node
from ddpbench.analysis.pipeline.costs import loader_cost, sampler_batch_s
from ddpbench.analysis.pipeline.rates import storage_rate
from ddpbench.analysis.ranks import COMPUTE_PHASES, drop_none, mean_or_none
from ddpbench.analysis.simulation.simulator import core_bound_step_s, simulate
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.batches import ProducerTimes, blocked_s, handoff_cpu_s, round_robin_times, sample_cpu_s, worker_times
from ddpbench.analysis.whatif.state import LoadCurve, PipelineState
from ddpbench.record.diagnosis import LoaderBenchmark
from ddpbench.record.loaders import loader_spec
from ddpbench.record.prediction import Assumption, MissingMeasurement
from ddpbench.record.record import Record, Round
from ddpbench.record.trace import PHASES

MIN_RUN_AHEAD_FRACTION = 0.5
"""From this fraction of a step on, host run-ahead issues the next step before the device is done."""

MIN_LOADED_FRACTION = 0.25
"""Least loaded fraction of a batch for extrapolation to a whole batch; below it, noise would be multiplied too."""

CHECKED_STEPS = 1000
"""Steps simulated to compare the model with the measured run."""

SATURATED_CORES_FRACTION = 0.8
"""From this utilization on, cores explain why a step lasts longer than its parts."""

MAX_START_FRACTION = 0.05
"""If the starts of epochs take more of the training, part of its CPU time is that of workers that start."""

MIN_STORAGE_RATE_FRACTION = 0.8
"""A storage rate below this fraction of what the run read is no limit: the files were in the page cache by then."""


def measured_state(inputs: AnalysisInput) -> PipelineState:
    """Return the pipeline state of ``inputs``.

    Raises MissingMeasurementError if the time of a batch is unknown.
    """
    record, config, node = inputs.record, inputs.record.config, cpu_demand(inputs.record)
    batches = _producer_times(inputs)
    steps, interference, assumptions = _steps(inputs)
    usage = busiest_node(record)
    other_cores = usage.other_cores if usage and usage.is_shared else 0.0
    load = node.ranks * (node.workers + node.trainer_cores // node.ranks) / node.usable_cores
    loading_load = load if node.workers else node.ranks / node.usable_cores  # without workers, only one thread of a trainer loads
    sample_cpu, (trainer_cpu, handoff_cpu) = _sample_cpu_curve(inputs, loading_load), _trainer_cpu_curve(inputs, load)
    costs_known = sample_cpu is not None and trainer_cpu is not None
    pinned = record.environment.device_type == "cuda" and config.pin_memory
    found = PipelineState(
        loader=config.loader,
        precision=config.precision,
        compile=config.compile,
        fast=config.fast,
        fused=config.fused_kernels,
        batch_size=config.batch_size,
        ranks=record.world_size,
        ranks_per_node=node.ranks,
        workers=node.workers,
        prefetch=config.prefetch,
        in_order=record.script.in_order if record.script else True,
        batch_times_s=batches.times_s,
        step_times_s=steps,
        interference_s=interference,
        handoff_s=_handoff_s(inputs),
        background_handoff=pinned,
        run_ahead=1 if (inputs.summary.host_lead_ms or 0.0) >= MIN_RUN_AHEAD_FRACTION * inputs.step_ms else 0,
        cores=node.usable_cores if costs_known else None,
        other_cores=other_cores,
        trainer_threads=node.trainer_cores // node.ranks,
        sample_cpu_curve=sample_cpu,
        trainer_cpu_curve=trainer_cpu,
        blocked_curve=_blocked_curve(inputs),
        handoff_cpu_s=handoff_cpu,
        measured_load=loading_load,
        measured_workers=node.ranks * max(1, node.workers),
        read_wait_fraction=batches.read_wait_fraction,
        files_per_s=_files_per_s(inputs),
        epoch_start_s=inputs.summary.epoch_start_ms / 1000,
        assumptions=(*batches.assumptions, *assumptions, *([] if costs_known else [Assumption(code="enough-cores")])),
    )
    return with_cpu_loss(found, inputs.step_ms / 1000 - found.epoch_start_s)


def with_cpu_loss(state: PipelineState, measured_step_s: float) -> PipelineState:
    """Return ``state`` with its CPU loss.

    It is unchanged unless nearly saturated cores explain why a step took longer than simulated.
    """
    params = state.sim_params()
    utilization = core_bound_step_s(params) / measured_step_s
    if (
        state.cores is None
        or not SATURATED_CORES_FRACTION <= utilization < 1
        or simulate(params, CHECKED_STEPS, Random(0)).step_s >= measured_step_s
    ):
        return state
    assumption = Assumption(code="cores-lost", lost_fraction=1 - utilization)
    return replace(state, cpu_loss=1 - utilization, assumptions=(*state.assumptions, assumption))


def step_times_s(record: Record) -> list[list[float]]:
    """Seconds of every step, by round: the mean over ranks, since they synchronise in it."""
    return [round_step_times_s(timed) for timed in record.rounds]


def round_step_times_s(timed: Round) -> list[float]:
    """Seconds of every step of one round, the mean over ranks."""
    return _phase_times_s(timed, PHASES)


def copy_s(inputs: AnalysisInput) -> float:
    """Seconds per step that host work and copies from pinned memory add to a compute-only step.

    0 without a GPU.
    """
    if inputs.record.environment.device_type != "cuda":
        return 0.0
    return max(0.0, extra_step_s(inputs.controls.replay, inputs.controls.compute_only) or 0.0)


def pageable_copy_s(inputs: AnalysisInput) -> float:
    """Seconds per step that the run waits for copies beyond ``copy_s``.

    0 without a GPU or with pinned memory.
    """
    if inputs.record.environment.device_type != "cuda" or inputs.record.config.pin_memory:
        return 0.0
    return max(0.0, inputs.summary.phases_ms["host_to_device"] / 1000 - copy_s(inputs))


def interference_s(inputs: AnalysisInput) -> float:
    """Seconds by which loading a whole batch makes a step on a GPU longer; 0 without a GPU or if not measured.

    For a loader on the device with a known delivery ratio this includes the wait for the rest of the batch.
    """
    compute_only_s, extra_s = (
        step_s(inputs.controls.compute_only),
        extra_step_s(inputs.controls.loader_in_background, inputs.controls.compute_only),
    )
    if compute_only_s is None or extra_s is None or inputs.record.environment.device_type != "cuda":
        return 0.0
    batch = inputs.record.config.batch_size
    benchmarks = inputs.controls.diagnosis.loader_benchmarks if inputs.controls.diagnosis else []
    ratio = delivery_ratio(inputs.controls.loader_in_background.rounds) if inputs.controls.loader_in_background else None
    if loader_spec(inputs.record.config.loader).on_device and ratio is not None:
        return max(0.0, extra_s) + shortfall_wait_s(ratio, batch, benchmarks)
    loaded_fraction = min(1.0, _min_loader_rate(benchmarks) * (compute_only_s + extra_s) / batch) if benchmarks else 1.0
    return max(0.0, extra_s) / max(MIN_LOADED_FRACTION, loaded_fraction)


def delivery_ratio(rounds: Sequence[Round]) -> float | None:
    """Images that the background loader delivered per image trained on, at most 1.

    None if not counted.
    """
    traces = [trace for timed in rounds for trace in timed.traces]
    delivered = [trace.loader_stats.samples for trace in traces if trace.loader_stats is not None]
    trained = sum(trace.samples for trace in traces)
    return min(1.0, sum(delivered) / trained) if delivered and trained else None


def shortfall_wait_s(delivered_fraction: float, batch: int, benchmarks: Sequence[LoaderBenchmark]) -> float:
    """Seconds per step that training waits for the rest of a batch.

    The loader delivers ``delivered_fraction`` of it while both use the device. It then has the device to itself and loads the rest as
    fast as in its benchmark.
    """
    return (1 - delivered_fraction) * batch / _min_loader_rate(benchmarks) if benchmarks else 0.0


def _min_loader_rate(benchmarks: Sequence[LoaderBenchmark]) -> float:
    return min(each.samples_per_s for each in benchmarks)


def _steps(inputs: AnalysisInput) -> tuple[list[list[float]], float, list[Assumption]]:
    """Return compute-only step times, seconds added in the run, assumptions.

    Copies and interference add to each step of the run.
    """
    if inputs.controls.compute_only is None:
        assumption = Assumption(code="compute-time-of-run", log_error=0.05)
        return [_phase_times_s(timed, COMPUTE_PHASES) for timed in inputs.record.rounds], 0.0, [assumption]
    on_device = loader_spec(inputs.record.config.loader).on_device
    copies_s = 0.0 if on_device else copy_s(inputs) + pageable_copy_s(inputs)
    return step_times_s(inputs.controls.compute_only), interference_s(inputs) + copies_s, []


def _files_per_s(inputs: AnalysisInput) -> float | None:
    """Files/s that storage and page cache give a node.

    It is at least what the run read. None if unknown or no limit.
    """
    storage = inputs.controls.diagnosis.storage if inputs.controls.diagnosis else None
    if storage is None or storage.cached_fraction is None:
        return None
    rate = storage_rate(1, storage.cached_fraction, storage.warm_files_per_s, storage.cold_files_per_s)
    read_per_s = 1000 * cpu_demand(inputs.record).ranks * inputs.record.config.batch_size / inputs.step_ms
    return max(rate, read_per_s) if rate is not None and rate >= MIN_STORAGE_RATE_FRACTION * read_per_s else None


def _phase_times_s(timed: Round, phases: Sequence[str]) -> list[float]:
    """Seconds per step in ``phases``, the mean over ranks.

    With all PHASES they are stretched to fill the wall time of the round.
    """
    each = [[sum(parts) for parts in zip(*(trace.phases_ms[phase] for phase in phases), strict=True)] for trace in timed.traces]
    spans = [fmean(ranks) / 1000 for ranks in zip(*each, strict=False)]
    mean_s = timed.wall_s / max(trace.steps for trace in timed.traces)
    scale = mean_s / fmean(spans) if len(phases) == len(PHASES) and fsum(spans) > 0 else 1.0
    return [scale * span for span in spans]


def _producer_times(inputs: AnalysisInput) -> ProducerTimes:
    config, diagnosis = inputs.record.config, inputs.controls.diagnosis
    benchmarks = diagnosis.loader_benchmarks if diagnosis else []
    loader = loader_spec(config.loader)
    if loader.uses_threads or loader.device_resident:
        if benchmarks:
            return round_robin_times(benchmarks, loader.num_producers(config.workers))
        raise MissingMeasurementError(MissingMeasurement(code="batch-time", loader=config.loader))
    stats = [drop_none(trace.loader_stats for trace in timed.traces) for timed in inputs.record.rounds]
    stats = [each for each in stats if len(each) == inputs.record.world_size]
    times = worker_times(stats, config.batch_size) if stats else None
    benchmark_stats = drop_none(each.loader_stats for each in benchmarks)
    benchmark_times = worker_times([benchmark_stats], config.batch_size) if len(benchmark_stats) == inputs.record.world_size else None
    if times is None:
        times = benchmark_times
    elif benchmark_times is not None and not times.assumptions and not benchmark_times.assumptions:
        times = replace(times, times_s=[*times.times_s, *benchmark_times.times_s])  # few rounds may have missed rare slow batches
    if times is None:
        raise MissingMeasurementError(MissingMeasurement(code="worker-batch-time", loader=config.loader))
    return times


def _handoff_s(inputs: AnalysisInput) -> float:
    """Without workers, the trainer itself has what it loads at once, but for the indices, which are no part of the time of a batch."""
    handoffs_ms = [trace.loader_stats.handoff_ms for trace in inputs.record.traces if trace.loader_stats]
    sampler_s = 0.0 if inputs.record.workers else sampler_batch_s(inputs.record)
    if drop_none(handoffs_ms):
        return fmean(drop_none(handoffs_ms)) / 1000 + sampler_s
    benchmarks = inputs.controls.diagnosis.loader_benchmarks if inputs.controls.diagnosis else []
    return (mean_or_none(each.loader_stats.handoff_ms for each in benchmarks if each.loader_stats) or 0.0) / 1000


def _sample_cpu_curve(inputs: AnalysisInput, load: float) -> LoadCurve | None:
    cores = cpu_demand(inputs.record).usable_cores
    points = [(workers / cores, sample_cpu_s(benchmarks)) for workers, benchmarks in _benchmarks_by_workers(inputs)]
    if cost := loader_cost(trace.loader_stats for trace in inputs.record.traces):
        points.append((load, cost.cpu_s))
    return LoadCurve.from_points(points) if points and min(value for _, value in points) > 0 else None


def _blocked_curve(inputs: AnalysisInput) -> LoadCurve | None:
    """None unless the workers of the run mostly wait for something else than a core: more of them may share what they wait for."""
    cost, node = loader_cost(trace.loader_stats for trace in inputs.record.traces), cpu_demand(inputs.record)
    if cost is None or cost.blocked_s is None or not cost.is_mostly_blocked:
        return None
    measured = [(max(1, workers), blocked_s(benchmarks, node.workers)) for workers, benchmarks in _benchmarks_by_workers(inputs)]
    points = [(workers, seconds) for workers, seconds in measured if seconds is not None]
    return LoadCurve.from_points([*points, (node.ranks * max(1, node.workers), cost.blocked_s)])


def _benchmarks_by_workers(inputs: AnalysisInput) -> list[tuple[int, Sequence[LoaderBenchmark]]]:
    """The loader benchmarks of the run's loader that were made, with the workers of a node that loaded in each."""
    diagnosis, node = inputs.controls.diagnosis, cpu_demand(inputs.record)
    if diagnosis is None:
        return []
    single, more = diagnosis.single_rank_loader_benchmark, diagnosis.all_cores_loader_benchmarks
    found = (
        (node.workers, [single] if single else []),
        (node.ranks * node.workers, diagnosis.loader_benchmarks),
        (node.ranks * (more[0].workers or 0) if more else 0, more),
    )
    return [(workers, benchmarks) for workers, benchmarks in found if benchmarks]


def _trainer_cpu_curve(inputs: AnalysisInput, load: float) -> tuple[LoadCurve | None, float]:
    """Return the trainer's CPU seconds per step by load, and those of the handoff in it.

    The curve has the compute-only run, and the run itself less the stages of its workers. The handoff is that of the loader benchmark,
    capped at what the run used beyond compute-only.
    """
    node, diagnosis, batch = cpu_demand(inputs.record), inputs.controls.diagnosis, inputs.record.config.batch_size
    has_worker_cpu = all(trace.loader_stats is not None and trace.loader_stats.cpu_s for trace in inputs.record.traces)
    compute_only_s = _cpu_s(inputs.controls.compute_only, with_workers=True) if inputs.controls.compute_only else None
    starts_often = inputs.summary.epoch_start_ms > MAX_START_FRACTION * inputs.step_ms
    run_s = _cpu_s(inputs.record, with_workers=False) if has_worker_cpu and not starts_often else None
    handoff_s = batch * handoff_cpu_s(diagnosis.loader_benchmarks) if diagnosis and diagnosis.loader_benchmarks and node.workers else 0.0
    if compute_only_s is None:
        return (LoadCurve.from_points([(load, run_s)]), 0.0) if run_s is not None else (None, 0.0)
    if run_s is None:
        return LoadCurve.from_points([(node.trainer_cores / node.usable_cores, compute_only_s + handoff_s)]), handoff_s
    handoff_s = min(handoff_s, max(0.0, run_s - compute_only_s))
    return LoadCurve.from_points([(node.trainer_cores / node.usable_cores, compute_only_s + handoff_s), (load, run_s)]), handoff_s


def _cpu_s(record: Record, *, with_workers: bool) -> float | None:
    """CPU seconds per step and rank; None if unknown."""
    traces = record.traces
    if any(trace.cpu_s is None for trace in traces):
        return None
    cpu_s = fsum((trace.cpu_s or 0.0) - (0.0 if with_workers else worker_cpu_s(trace)) for trace in traces)
    return max(0.0, cpu_s) / sum(trace.steps for trace in traces)
