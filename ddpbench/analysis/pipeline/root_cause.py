"""Root cause of a slow loader. The rules are tested in order, each on numbers; the first that applies wins.

If a rule applies but the evidence does not separate its cause from another, no cause is named, and the evidence says between which two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import get_args

from ddpbench.analysis.pipeline.costs import READ_STAGE
from ddpbench.analysis.pipeline.model import PipelineModel
from ddpbench.record.root_cause import (
    BlockedWorkers,
    BusyCores,
    BusyCoresUnexplained,
    Cause,
    CauseEvidence,
    CpuQuota,
    CpuStage,
    DominantStage,
    EnoughWorkers,
    HandoffOrWorkers,
    HeadOfLine,
    HeadOfLineOrWorkers,
    IdleWorkers,
    OversubscribedWorkers,
    ReadAndDecodeWait,
    ReadWait,
    ReadWaitOrCores,
    SharedBusyCores,
    SlowHandoff,
    StorageRate,
    TooFewCores,
    TooFewWorkers,
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


def cpu_quota(given: PipelineModel) -> RootCause | None:
    busy = given.cpu_usage
    if busy is None or busy.throttled_fraction < MIN_THROTTLED_FRACTION:
        return None
    return RootCause("quota", CpuQuota(usable_cores=busy.usable_cores, cores=busy.cores, throttled_fraction=busy.throttled_fraction))


def slow_handoff(given: PipelineModel) -> RootCause | None:
    """Finished batches reach the trainer late.

    Does not apply if workers keep the cores busy: the trainer then waits for a core itself.
    """
    share, working = given.handoff_fraction, given.worker_busy_fraction
    if given.is_contended and (given.worker_cores or 0.0) >= EXPLAINED_FRACTION * given.usable_cores:
        return None
    if (
        share is None
        or share < RULED_OUT_FRACTION
        or (working is not None and working >= BUSY_WORKER_FRACTION and share < EXPLAINED_FRACTION)
    ):
        return None
    if share < EXPLAINED_FRACTION:
        return RootCause(None, HandoffOrWorkers(handoff_fraction=share))
    idle = working if working is not None and working < BUSY_WORKER_FRACTION else None
    return RootCause("handoff", SlowHandoff(handoff_fraction=min(1.0, share), worker_busy_fraction=idle))


def head_of_line(given: PipelineModel) -> RootCause | None:
    """Workers whose mean rate is enough, but later batches are ready before the one that is due."""
    blocked = given.head_of_line_fraction
    if blocked is None or blocked < RULED_OUT_FRACTION:
        return None
    enough = given.worker_bound_rate is not None and given.worker_bound_rate / given.device_rate
    if not enough or enough < 1 / CLEARLY_GREATER:
        return None  # the workers are too few as well, and then some batch is always ahead of its turn
    if blocked < EXPLAINED_FRACTION or enough < CLEARLY_GREATER:
        return RootCause(None, HeadOfLineOrWorkers(blocked_fraction=blocked, workers=given.workers))
    return RootCause("head-of-line", HeadOfLine(blocked_fraction=blocked, worker_samples_per_s=given.worker_bound_rate or 0.0))


def slow_storage(given: PipelineModel) -> RootCause | None:
    """Slow file reads.

    Judged by how long the workers wait for them, else by how fast the files can be read at all.
    """
    cost = given.cost
    if cost is not None and READ_STAGE in cost.wall_s_by_stage:
        share, image_ms, read_wait_ms = cost.read_wait_s / cost.wall_s, 1000 * cost.wall_s, 1000 * cost.read_wait_s
        if share >= EXPLAINED_FRACTION:
            if given.is_contended and given.cpu_usage is not None and cost.runqueue_wait_s is None:
                return RootCause(None, ReadWaitOrCores(sample_ms=image_ms, read_wait_ms=read_wait_ms))
            return RootCause("storage", ReadWait(sample_ms=image_ms, read_wait_ms=read_wait_ms))
        if share < RULED_OUT_FRACTION:
            return None
    rate = given.storage_rate
    reached = max(given.achieved_rate, given.measured_loader_rate or 0.0)
    if rate is None or rate >= given.device_rate or rate > CLEARLY_GREATER * reached:
        return None
    return RootCause("storage", StorageRate(samples_per_s=rate))


def blocked_workers(given: PipelineModel) -> RootCause | None:
    """Workers that wait for neither a core nor a known file read.

    Judged by whether a single rank alone loads faster.
    """
    cost, speedup = given.cost, given.single_rank_speedup
    if cost is None or not cost.is_mostly_blocked or READ_STAGE in cost.wall_s_by_stage:
        return None
    image_ms, blocked_ms = 1000 * cost.wall_s, 1000 * (cost.blocked_s or 0.0)
    if "decode" in cost.wall_s_by_stage:
        return RootCause("storage", ReadAndDecodeWait(sample_ms=image_ms, blocked_ms=blocked_ms))
    if speedup is not None and speedup <= CLEARLY_GREATER:
        return None
    return RootCause(None, BlockedWorkers(sample_ms=image_ms, blocked_ms=blocked_ms, single_rank_speedup=speedup))


def idle_workers(given: PipelineModel) -> RootCause | None:
    """Workers that wait on free cores are not too few, and no earlier rule has found what they wait for."""
    working = given.worker_busy_fraction
    if working is None or working >= BUSY_WORKER_FRACTION or given.is_contended:
        return None
    return RootCause(None, IdleWorkers(busy_fraction=working))


def oversubscribed(given: PipelineModel) -> RootCause | None:
    """Far more workers than cores.

    From 4 per core on, or from 2 if the cost is known and no single stage dominates. Judged by their number: the cost of taking turns is
    part of the cost per image, so the rate of the cores already includes it.
    """
    workers, crowd = given.ranks_per_node * given.workers, OVERSUBSCRIBED_WORKERS_PER_CORE * given.usable_cores
    if not given.is_contended or workers < crowd or (workers < 2 * crowd and (given.cost is None or dominant_stage(given))):
        return None
    if given.cost is not None and given.core_bound_rate is None:
        return None  # too few cores for any number of workers
    evidence = OversubscribedWorkers(workers=workers, usable_cores=given.usable_cores, core_samples_per_s=given.core_bound_rate or None)
    return RootCause("oversubscribed", evidence)


def dominant_stage(given: PipelineModel) -> RootCause | None:
    """The only stage that explains nearly all of the missing time.

    Does not apply if idle cores have room for more workers.
    """
    cost = given.cost
    if cost is None or given.core_bound_rate is None or _more_workers_gain(given) or _cores_keep_up(given):
        return None
    there = [stage for stage in CPU_STAGES if stage in cost.cpu_s_by_stage]
    free = {stage: rate for stage in there if (rate := given.rate_from_cores(cost.cpu_s_without(stage) + given.main_process_cpu_s))}
    lacking_s = 1 / given.core_bound_rate - 1 / given.device_rate
    enough = [stage for stage, rate in free.items() if 1 / given.core_bound_rate - 1 / rate >= DOMINANT_STAGE_FRACTION * lacking_s]
    if enough != [cost.costliest_stage]:
        return None
    [stage] = enough
    return RootCause(
        stage,
        DominantStage(
            stage=stage,
            cpu_fraction=cost.cpu_s_by_stage[stage] / cost.cpu_s,
            usable_cores=given.usable_cores,
            samples_per_s=given.core_bound_rate,
            samples_per_s_without=free[stage] if isfinite(free[stage]) else None,
        ),
    )


def busy_cores(given: PipelineModel) -> RootCause | None:
    """All cores busy, with a loader that does not report its cost per image."""
    busy = given.cpu_usage
    if given.cost is not None or busy is None or not busy.is_saturated:
        return None
    if busy.is_shared:
        shared = SharedBusyCores(usable_cores=busy.usable_cores, job_cores=busy.job_cores, other_cores=busy.other_cores)
        return RootCause(None, shared)
    return RootCause("too-few-cores", BusyCores(usable_cores=busy.usable_cores, job_cores=busy.job_cores))


def too_few_cores(given: PipelineModel) -> RootCause | None:
    if given.cost is None or _more_workers_gain(given) or _cores_keep_up(given):
        return None
    if given.core_bound_rate is None and not given.is_contended:
        return None
    return RootCause(
        "too-few-cores",
        TooFewCores(
            ranks=given.ranks_per_node,
            usable_cores=given.usable_cores,
            trainer_cores=given.trainer_cores,
            core_samples_per_s=given.core_bound_rate or None,
            cores_needed=given.whole_cores_needed or 0.0,
            handoff_samples_per_s=given.max_rate if given.is_handoff_bound else None,
        ),
    )


def too_few_workers(given: PipelineModel) -> RootCause | None:
    """All workers busy, on cores that are not."""
    wanted, useful = given.workers_needed, given.max_useful_workers
    if wanted is None or useful is None or given.cost is None or given.core_bound_rate is None:
        return None
    best, by_workers = min(wanted, useful), given.worker_bound_rate or 0.0
    if best <= given.workers:
        return None
    if given.is_contended and given.cpu_usage is not None:
        return RootCause(None, BusyCoresUnexplained(usable_cores=given.cpu_usage.usable_cores))
    if by_workers >= given.device_rate:
        return RootCause(None, EnoughWorkers(workers=given.workers, samples_per_s=by_workers))
    limited_by, rate = _limit_of_more_workers(given, given.core_bound_rate, best)
    return RootCause(
        "too-few-workers",
        TooFewWorkers(
            workers=given.workers,
            samples_per_s=by_workers,
            more_workers=best,
            more_samples_per_s=rate,
            limited_by=limited_by,
            usable_cores=given.usable_cores,
        ),
    )


def _limit_of_more_workers(given: PipelineModel, core_bound_rate: float, workers: int) -> tuple[WorkerLimit, float]:
    """What limits the rate with ``workers``, and that rate."""
    worker_s = given.worker_sample_s or 0.0
    if workers < worker_s * given.max_rate <= worker_s * core_bound_rate:  # more than MAX_WORKERS_PER_CORE
        return "memory", workers / worker_s
    if core_bound_rate >= given.max_rate:
        return "handoff" if given.is_handoff_bound else "device", given.max_rate
    return "cores", core_bound_rate


CAUSE_RULES: tuple[Callable[[PipelineModel], RootCause | None], ...] = (
    cpu_quota,
    slow_handoff,
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
