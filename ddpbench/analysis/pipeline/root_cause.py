"""Root cause of a slow loader. The rules are tested in order, each on numbers; the first that applies wins.

If a rule applies but the evidence does not separate its cause from another, no cause is named, and the evidence says between which two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import get_args

from ddpbench.analysis.controls import WorkersTrial
from ddpbench.analysis.pipeline.costs import READ_STAGE
from ddpbench.analysis.pipeline.model import BenchmarkGain, PipelineModel
from ddpbench.record.root_cause import (
    BlockedWorkers,
    BusyCores,
    BusyCoresUnexplained,
    Cause,
    CauseEvidence,
    ComparedWorkers,
    CpuQuota,
    CpuStage,
    DominantStage,
    EnoughWorkers,
    HandoffOrWorkers,
    HeadOfLine,
    HeadOfLineOrWorkers,
    IdleWorkers,
    OneByOne,
    OversubscribedWorkers,
    ReadAndDecodeWait,
    ReadWait,
    ReadWaitOrCores,
    SharedBusyCores,
    SlowHandoff,
    SlowSampler,
    StorageRate,
    TimeOutsideSamples,
    TooFewCores,
    TooFewWorkers,
    TriedWorkers,
    WorkerLimit,
)

EXPLAINED_FRACTION = 0.5
"""A cause that explains at least this fraction of a wait is named."""

RULED_OUT_FRACTION = 0.4
"""A cause that explains less than this fraction of a wait is ruled out; in between it is undecided."""

MIN_THROTTLED_FRACTION = 0.1
"""A CPU quota matters if it withholds at least this fraction of the CPU time that the job asks for."""

BUSY_WORKER_FRACTION = 0.85
"""Workers that load batches for less than this fraction of their time wait for something themselves."""

CLEARLY_GREATER = 1.1
"""A rate this many times another is greater beyond its uncertainty."""

DOMINANT_STAGE_FRACTION = 0.75
"""A stage is dominant if leaving it out recovers at least this fraction of the missing time."""

OVERSUBSCRIBED_WORKERS_PER_CORE = 2
"""From so many workers per core on, they take turns on it."""

MIN_TURNS_SLOWDOWN = 1.2
"""Workers that take this many times as long as they compute take turns, if nothing else shows that the cores are busy."""

CPU_STAGES: tuple[CpuStage, ...] = get_args(CpuStage)


@dataclass(frozen=True)
class RootCause:
    """A cause and the numbers that show it.

    ``cause`` is None if it is left open; ``evidence`` then says between what. Both are None if no rule applies.
    """

    cause: Cause | None
    evidence: CauseEvidence | None


def find_root_cause(pipeline: PipelineModel) -> RootCause:
    """Return what makes the loader slow.

    The RootCause is empty if no rule applies, for example without stage times and CPU usage.
    """
    return next((found for rule in CAUSE_RULES if (found := rule(pipeline))), RootCause(None, None))


def cpu_quota(pipeline: PipelineModel) -> RootCause | None:
    usage = pipeline.cpu_usage
    if usage is None or usage.throttled_fraction < MIN_THROTTLED_FRACTION:
        return None
    return RootCause("quota", CpuQuota(usable_cores=usage.usable_cores, cores=usage.cores, throttled_fraction=usage.throttled_fraction))


def one_by_one(pipeline: PipelineModel) -> RootCause | None:
    """Data that could stay on the device, and would be read there in a fraction of the time."""
    rate, resident_rate = pipeline.measured_loader_rate, pipeline.resident_rate
    if rate is None or resident_rate is None or rate > EXPLAINED_FRACTION * resident_rate:
        return None
    return RootCause("one-by-one", OneByOne(samples_per_s=rate, resident_samples_per_s=resident_rate))


def slow_sampler(pipeline: PipelineModel) -> RootCause | None:
    """Indices that the trainer draws while it waits."""
    fraction = pipeline.sampler_fraction
    if fraction is None or fraction < EXPLAINED_FRACTION:
        return None
    return RootCause("slow-sampler", SlowSampler(sampler_fraction=min(1.0, fraction), batch_ms=1000 * pipeline.sampler_batch_s))


def slow_handoff(pipeline: PipelineModel) -> RootCause | None:
    """Finished batches reach the trainer late.

    Does not apply if workers keep the cores busy: the trainer then waits for a core itself. Nor if they load all the time: while a batch is
    on its way, they make the next one.
    """
    fraction, busy_fraction = pipeline.handoff_fraction, pipeline.worker_busy_fraction
    if pipeline.is_contended and (pipeline.worker_cores or 0.0) >= EXPLAINED_FRACTION * pipeline.usable_cores:
        return None
    if fraction is None or fraction < RULED_OUT_FRACTION or (busy_fraction is not None and busy_fraction >= BUSY_WORKER_FRACTION):
        return None
    if fraction < EXPLAINED_FRACTION:
        return RootCause(None, HandoffOrWorkers(handoff_fraction=fraction))
    return RootCause("handoff", SlowHandoff(handoff_fraction=min(1.0, fraction), worker_busy_fraction=busy_fraction))


def outside_samples(pipeline: PipelineModel) -> RootCause | None:
    """A trainer without workers that spends its wait beside the samples, such as in a sampler: workers would not take that over."""
    cost, wait_s = pipeline.cost, pipeline.data_wait_fraction / pipeline.achieved_rate
    if pipeline.workers or pipeline.pins_itself or cost is None or wait_s - cost.wall_s < EXPLAINED_FRACTION * wait_s:
        return None
    return RootCause(None, TimeOutsideSamples(wait_ms=1000 * wait_s, sample_ms=1000 * cost.wall_s))


def head_of_line(pipeline: PipelineModel) -> RootCause | None:
    """Workers whose mean rate is enough, but later batches are ready before the one that is due."""
    blocked_fraction = pipeline.head_of_line_fraction
    if blocked_fraction is None or blocked_fraction < RULED_OUT_FRACTION:
        return None
    rate_ratio = pipeline.worker_bound_rate is not None and pipeline.worker_bound_rate / pipeline.device_rate
    if not rate_ratio or rate_ratio < 1 / CLEARLY_GREATER:
        return None  # the workers are too few as well, and then some batch is always ahead of its turn
    if blocked_fraction < EXPLAINED_FRACTION or rate_ratio < CLEARLY_GREATER:
        return RootCause(None, HeadOfLineOrWorkers(blocked_fraction=blocked_fraction, workers=pipeline.workers))
    return RootCause("head-of-line", HeadOfLine(blocked_fraction=blocked_fraction, worker_samples_per_s=pipeline.worker_bound_rate or 0.0))


def slow_storage(pipeline: PipelineModel) -> RootCause | None:
    """Slow file reads.

    Judged by how long the workers wait for them, else by how fast the files can be read at all.
    """
    cost = pipeline.cost
    if cost is not None and READ_STAGE in cost.wall_s_by_stage:
        wait_fraction, sample_ms, read_wait_ms = cost.read_wait_s / cost.wall_s, 1000 * cost.wall_s, 1000 * cost.read_wait_s
        if wait_fraction >= EXPLAINED_FRACTION:
            if pipeline.is_contended and pipeline.cpu_usage is not None and cost.runqueue_wait_s is None:
                return RootCause(None, ReadWaitOrCores(sample_ms=sample_ms, read_wait_ms=read_wait_ms))
            return RootCause("storage", ReadWait(sample_ms=sample_ms, read_wait_ms=read_wait_ms))
        if wait_fraction < RULED_OUT_FRACTION:
            return None
    rate = pipeline.storage_rate
    achieved_rate = max(pipeline.achieved_rate, pipeline.measured_loader_rate or 0.0)
    if rate is None or rate >= pipeline.device_rate or rate > CLEARLY_GREATER * achieved_rate:
        return None
    return RootCause("storage", StorageRate(samples_per_s=rate))


def blocked_workers(pipeline: PipelineModel) -> RootCause | None:
    """Workers that wait for neither a core nor a known file read.

    Judged by a trial with more workers, else by a loader benchmark with more, else by whether a single rank alone loads faster.
    """
    cost, speedup = pipeline.cost, pipeline.single_rank_speedup
    if cost is None or not cost.is_mostly_blocked or READ_STAGE in cost.wall_s_by_stage:
        return None
    sample_ms, blocked_ms = 1000 * cost.wall_s, 1000 * (cost.blocked_s or 0.0)
    if "decode" in cost.wall_s_by_stage:
        return RootCause("storage", ReadAndDecodeWait(sample_ms=sample_ms, blocked_ms=blocked_ms))
    trial = pipeline.more_workers
    if trial and (is_enough := _is_enough_gain(pipeline, trial)) is not None:
        evidence = TriedWorkers(
            sample_ms=sample_ms, blocked_ms=blocked_ms, workers=pipeline.workers, more_workers=trial.workers, gain=trial.gain.center
        )
        return RootCause("too-few-workers" if is_enough else None, evidence)
    if benchmark := _enough_in_benchmark(pipeline):
        evidence = TriedWorkers(
            sample_ms=sample_ms,
            blocked_ms=blocked_ms,
            workers=pipeline.workers,
            more_workers=benchmark.workers,
            gain=benchmark.gain,
            is_loader_only=True,
        )
        return RootCause("too-few-workers", evidence)
    if speedup is not None and speedup <= CLEARLY_GREATER:
        return None
    return RootCause(None, BlockedWorkers(sample_ms=sample_ms, blocked_ms=blocked_ms, single_rank_speedup=speedup))


def _is_enough_gain(pipeline: PipelineModel, trial: WorkersTrial) -> bool | None:
    """Whether ``trial`` saved a good part of the time that it saves with ideal scaling; None if it varied too much to tell."""
    least_gain = _least_gain(pipeline, trial.workers)
    if trial.gain.is_above_one and trial.gain.center >= least_gain:
        return True
    return False if trial.gain.high < least_gain else None


def _enough_in_benchmark(pipeline: PipelineModel) -> BenchmarkGain | None:
    """The loader benchmark with more workers, if it gained as much as a trial must; None if it did not, or was not made."""
    benchmark = pipeline.benchmark_gain if pipeline.workers else None  # a first worker gains by loading while the trainer computes
    is_enough = benchmark and benchmark.gain >= max(CLEARLY_GREATER, _least_gain(pipeline, benchmark.workers))
    return benchmark if is_enough else None


def _least_gain(pipeline: PipelineModel, workers: int) -> float:
    ideal_gain = min(workers / max(1, pipeline.workers), pipeline.device_rate / pipeline.achieved_rate)
    return 1 / (1 - EXPLAINED_FRACTION * (1 - 1 / ideal_gain))


def idle_workers(pipeline: PipelineModel) -> RootCause | None:
    """Workers that wait on free cores, and no earlier rule has found what they wait for.

    They are not too few, unless more were faster in a trial or a loader benchmark.
    """
    busy_fraction, trial = pipeline.worker_busy_fraction, pipeline.more_workers
    if busy_fraction is None or busy_fraction >= BUSY_WORKER_FRACTION or pipeline.is_contended:
        return None
    is_enough, benchmark = _is_enough_gain(pipeline, trial) if trial else None, _enough_in_benchmark(pipeline)
    if trial and is_enough:
        return RootCause("too-few-workers", _compared(pipeline, trial.workers, trial.gain.center))
    if benchmark and is_enough is None and (pipeline.worker_bound_rate or inf) < pipeline.device_rate:
        return RootCause("too-few-workers", _compared(pipeline, benchmark.workers, benchmark.gain, is_loader_only=True))
    return RootCause(None, IdleWorkers(busy_fraction=busy_fraction))


def oversubscribed(pipeline: PipelineModel) -> RootCause | None:
    """Far more workers than cores.

    From 4 per core on, or from 2 if the cost is known and no single stage dominates. Judged by their number, if they are known to compute:
    the cost of taking turns is part of the cost per image, so the rate of the cores already includes it.
    """
    if pipeline.cpu_usage is None and (pipeline.cost is None or pipeline.cost.slowdown < MIN_TURNS_SLOWDOWN):
        return None  # workers that sleep need no core
    workers, threshold = pipeline.ranks_per_node * pipeline.workers, OVERSUBSCRIBED_WORKERS_PER_CORE * pipeline.usable_cores
    if (
        not pipeline.is_contended
        or workers < threshold
        or (workers < 2 * threshold and (pipeline.cost is None or dominant_stage(pipeline)))
    ):
        return None
    if pipeline.cost is not None and pipeline.core_bound_rate is None:
        return None  # too few cores for any number of workers
    evidence = OversubscribedWorkers(
        workers=workers, usable_cores=pipeline.usable_cores, core_samples_per_s=pipeline.core_bound_rate or None
    )
    return RootCause("oversubscribed", evidence)


def dominant_stage(pipeline: PipelineModel) -> RootCause | None:
    """The only stage that explains nearly all of the missing time.

    Does not apply if idle cores have room for more workers.
    """
    cost = pipeline.cost
    if cost is None or pipeline.core_bound_rate is None or _more_workers_gain(pipeline) or _cores_keep_up(pipeline):
        return None
    stages = [stage for stage in CPU_STAGES if stage in cost.cpu_s_by_stage]
    costs_without = {stage: pipeline.all_cores_factor * cost.cpu_s_without(stage) + pipeline.main_process_cpu_s for stage in stages}
    rate_without = {stage: rate for stage, cpu_s in costs_without.items() if (rate := pipeline.rate_from_cores(cpu_s))}
    missing_s = 1 / pipeline.core_bound_rate - 1 / pipeline.device_rate
    dominant = [
        stage for stage, rate in rate_without.items() if 1 / pipeline.core_bound_rate - 1 / rate >= DOMINANT_STAGE_FRACTION * missing_s
    ]
    if dominant != [cost.costliest_stage]:
        return None
    [stage] = dominant
    return RootCause(
        stage,
        DominantStage(
            stage=stage,
            cpu_fraction=cost.cpu_s_by_stage[stage] / cost.cpu_s,
            usable_cores=pipeline.usable_cores,
            samples_per_s=pipeline.core_bound_rate,
            samples_per_s_without=rate_without[stage] if isfinite(rate_without[stage]) else None,
        ),
    )


def busy_cores(pipeline: PipelineModel) -> RootCause | None:
    """All cores busy, with a loader that does not report its cost per image."""
    usage = pipeline.cpu_usage
    if pipeline.cost is not None or usage is None or not usage.is_saturated:
        return None
    if usage.is_shared:
        shared = SharedBusyCores(usable_cores=usage.usable_cores, job_cores=usage.job_cores, other_cores=usage.other_cores)
        return RootCause(None, shared)
    return RootCause("too-few-cores", BusyCores(usable_cores=usage.usable_cores, job_cores=usage.job_cores))


def too_few_cores(pipeline: PipelineModel) -> RootCause | None:
    if pipeline.cost is None or _more_workers_gain(pipeline) or _cores_keep_up(pipeline):
        return None
    if pipeline.core_bound_rate is None and not pipeline.is_contended:
        return None
    return RootCause(
        "too-few-cores",
        TooFewCores(
            ranks=pipeline.ranks_per_node,
            usable_cores=pipeline.usable_cores,
            trainer_cores=pipeline.trainer_cores,
            core_samples_per_s=pipeline.core_bound_rate or None,
            cores_needed=pipeline.whole_cores_needed or 0.0,
            handoff_samples_per_s=pipeline.max_rate if pipeline.is_handoff_bound else None,
            samples_per_s_per_core=pipeline.rate_per_core,
        ),
    )


def too_few_workers(pipeline: PipelineModel) -> RootCause | None:
    """All workers busy, on cores that are not. Open if a trial with more was no faster."""
    workers, worker_rate = pipeline.recommended_workers, pipeline.worker_bound_rate or 0.0
    if workers is None or workers <= pipeline.workers or pipeline.core_bound_rate is None:
        return None
    if pipeline.is_contended and pipeline.cpu_usage is not None:
        return RootCause(None, BusyCoresUnexplained(usable_cores=pipeline.cpu_usage.usable_cores))
    if worker_rate >= pipeline.device_rate:
        return RootCause(None, EnoughWorkers(workers=pipeline.workers, samples_per_s=worker_rate))
    trial = pipeline.more_workers
    if trial and not trial.gain.is_above_one and trial.gain.high < CLEARLY_GREATER:
        return RootCause(None, _compared(pipeline, trial.workers, trial.gain.center))
    limited_by, rate = _limit_of_more_workers(pipeline, pipeline.core_bound_rate, workers)
    return RootCause(
        "too-few-workers",
        TooFewWorkers(
            workers=pipeline.workers,
            samples_per_s=worker_rate,
            more_workers=workers,
            more_samples_per_s=rate,
            limited_by=limited_by,
            usable_cores=pipeline.usable_cores,
            samples_per_s_per_core=pipeline.rate_per_core,
        ),
    )


def _compared(pipeline: PipelineModel, more_workers: int, gain: float, is_loader_only: bool = False) -> ComparedWorkers:
    return ComparedWorkers(
        workers=pipeline.workers,
        samples_per_s=pipeline.achieved_rate,
        more_workers=more_workers,
        gain=gain,
        is_loader_only=is_loader_only,
    )


def _limit_of_more_workers(pipeline: PipelineModel, core_bound_rate: float, workers: int) -> tuple[WorkerLimit, float]:
    """What limits the rate with ``workers``, and that rate."""
    worker_s = pipeline.all_cores_worker_sample_s(pipeline.cost) if pipeline.cost else 0.0
    if workers < worker_s * pipeline.max_rate <= worker_s * core_bound_rate:  # more than MAX_WORKERS_PER_CORE
        return "memory", workers / worker_s
    if core_bound_rate >= pipeline.max_rate:
        return "handoff" if pipeline.is_handoff_bound else "device", pipeline.max_rate
    return "cores", core_bound_rate


CAUSE_RULES: tuple[Callable[[PipelineModel], RootCause | None], ...] = (
    cpu_quota,
    one_by_one,
    slow_sampler,
    slow_handoff,
    outside_samples,
    head_of_line,
    slow_storage,
    blocked_workers,
    idle_workers,
    oversubscribed,
    dominant_stage,
    busy_cores,
    too_few_cores,
    too_few_workers,
)


def _cores_keep_up(pipeline: PipelineModel) -> bool:
    return pipeline.core_bound_rate is not None and pipeline.core_bound_rate >= pipeline.device_rate


def _more_workers_gain(pipeline: PipelineModel) -> bool:
    """Whether more workers load faster on cores that are not all busy.

    Then this is the first change, whatever limits next.
    """
    if pipeline.core_bound_rate is None or pipeline.worker_bound_rate is None or pipeline.is_contended:
        return False
    return min(pipeline.core_bound_rate, pipeline.max_rate) >= CLEARLY_GREATER * pipeline.worker_bound_rate
