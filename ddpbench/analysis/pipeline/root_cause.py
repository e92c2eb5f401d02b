"""Root cause of a slow loader. The rules are tested in order, each on numbers; the first that applies wins.

If a rule applies but the evidence does not separate its cause from another, no cause is named, and the reason says between which two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from ddpbench.analysis.pipeline.costs import READ_STAGE
from ddpbench.analysis.pipeline.model import MAX_WORKERS_PER_CORE, PipelineModel
from ddpbench.record.text import format_3sig, pluralize

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

TRAINER_PROCESS = "trainer process"
"""Label of the cost of receiving a batch from a worker, apart from the stages."""

CPU_STAGES = ("decode", "augment", "collate")
"""The CPU-bound stages of loading an image."""


@dataclass(frozen=True)
class RootCause:
    """A cause and the numbers that show it.

    ``name`` is empty if undecided; ``reason`` then says between what.
    """

    name: str
    reason: str


def find_root_cause(pipeline: PipelineModel, sample_unit: str = "image", device: str = "GPU") -> RootCause:
    """Return what makes the loader slow.

    The RootCause is empty if no rule applies, for example without stage times and CPU usage.
    """
    asked = _CauseContext(pipeline, sample_unit, device)
    return next((found for each in CAUSE_RULES if (found := each(asked))), RootCause("", ""))


@dataclass(frozen=True)
class _CauseContext:
    pipeline: PipelineModel
    sample_unit: str
    device: str

    def format_rate(self, rate: float) -> str:
        return f"{format_3sig(rate)} {self.sample_unit}s/s"

    @property
    def devices_phrase(self) -> str:
        """Such as "this GPU" or "4 GPUs"."""
        ranks = self.pipeline.ranks_per_node
        return f"this {self.device}" if ranks == 1 else f"{ranks} {self.device}s"


def cpu_quota(context: _CauseContext) -> RootCause | None:
    busy = context.pipeline.cpu_usage
    if busy is None or busy.throttled_fraction < MIN_THROTTLED_FRACTION:
        return None
    return RootCause(
        "quota",
        f"a quota of {format_3sig(busy.usable_cores)} of {busy.cores} cores kept "
        f"{busy.throttled_fraction:.0%} of the core time from the job that it asked for",
    )


def slow_handoff(context: _CauseContext) -> RootCause | None:
    """Finished batches reach the trainer late.

    Does not apply if workers keep the cores busy: the trainer then waits for a core itself.
    """
    share, working = context.pipeline.handoff_fraction, context.pipeline.worker_busy_fraction
    if context.pipeline.is_contended and (context.pipeline.worker_cores or 0.0) >= EXPLAINED_FRACTION * context.pipeline.usable_cores:
        return None
    if (
        share is None
        or share < RULED_OUT_FRACTION
        or (working is not None and working >= BUSY_WORKER_FRACTION and share < EXPLAINED_FRACTION)
    ):
        return None
    slow = f"{min(1.0, share):.0%} of the wait for a batch is after its worker has made it"
    if share < EXPLAINED_FRACTION:
        return RootCause("", f"{slow}: taking it over, or making it, which cannot be told apart")
    idle = f", and the workers are busy for {working:.0%} of their time" if working is not None and working < BUSY_WORKER_FRACTION else ""
    return RootCause("hand-over", f"{slow}{idle}: the trainer process takes batches over too slowly")


def head_of_line(context: _CauseContext) -> RootCause | None:
    """Workers whose mean rate is enough, but later batches are ready before the one that is due."""
    given = context.pipeline
    blocked = given.head_of_line_fraction
    if blocked is None or blocked < RULED_OUT_FRACTION:
        return None
    enough = given.worker_bound_rate is not None and given.worker_bound_rate / given.device_rate
    ready = f"for {blocked:.0%} of the wait a later batch was ready, and not the one whose turn it was"
    if not enough or enough < 1 / CLEARLY_GREATER:
        return None  # the workers are too few as well, and then some batch is always ahead of its turn
    if blocked < EXPLAINED_FRACTION or enough < CLEARLY_GREATER:
        return RootCause("", f"{ready}; {pluralize(given.workers, 'worker')} would be just enough, so these two cannot be told apart")
    return RootCause("head-of-line", f"{ready}; on the mean the workers make {context.format_rate(given.worker_bound_rate or 0.0)}")


def slow_storage(context: _CauseContext) -> RootCause | None:
    """Slow file reads.

    Judged by how long the workers wait for them, else by how fast the files can be read at all.
    """
    given, cost = context.pipeline, context.pipeline.cost
    if cost is not None and READ_STAGE in cost.wall_s_by_stage:
        share = cost.read_wait_s / cost.wall_s
        if share >= EXPLAINED_FRACTION:
            waits = (
                f"of the {format_3sig(1000 * cost.wall_s)} ms that a worker takes for an {context.sample_unit} "
                f"it waits {format_3sig(1000 * cost.read_wait_s)} for its file"
            )
            if given.is_contended and given.cpu_usage is not None and cost.runqueue_wait_s is None:
                return RootCause("", f"{waits}, and all cores are busy: storage and cores cannot be told apart")
            return RootCause("storage", waits)
        if share < RULED_OUT_FRACTION:
            return None
    rate = given.storage_rate
    reached = max(given.achieved_rate, given.measured_loader_rate or 0.0)
    if rate is None or rate >= given.device_rate or rate > CLEARLY_GREATER * reached:
        return None
    return RootCause("storage", f"its files can be read at {context.format_rate(rate)} a {context.device}")


def blocked_workers(context: _CauseContext) -> RootCause | None:
    """Workers that wait for neither a core nor a known file read.

    Judged by whether a single rank alone loads faster.
    """
    given, cost = context.pipeline, context.pipeline.cost
    if cost is None or not cost.is_mostly_blocked or READ_STAGE in cost.wall_s_by_stage:
        return None
    waits = (
        f"of the {format_3sig(1000 * cost.wall_s)} ms that a worker takes for an {context.sample_unit} "
        f"it waits {format_3sig(1000 * (cost.blocked_s or 0.0))}, and for no core"
    )
    if "decode" in cost.wall_s_by_stage:
        return RootCause("storage", f"{waits}: for its file, which it reads and decodes in one")
    if given.single_rank_speedup is None:
        return RootCause("", f"{waits}: whether more workers would help cannot be told")
    if given.single_rank_speedup > CLEARLY_GREATER:
        return RootCause("", f"{waits}; one rank alone gets {given.single_rank_speedup:.1f} times as many: they share what they wait for")
    return None


def idle_workers(context: _CauseContext) -> RootCause | None:
    """Workers that wait on free cores are not too few, and no earlier rule has found what they wait for."""
    working = context.pipeline.worker_busy_fraction
    if working is None or working >= BUSY_WORKER_FRACTION or context.pipeline.is_contended:
        return None
    idle = f"the workers make batches for {working:.0%} of their time"
    return RootCause("", f"{idle}, and yet the {context.device} waits: for what cannot be told")


def oversubscribed(context: _CauseContext) -> RootCause | None:
    """Far more workers than cores.

    From 4 per core on, or from 2 if the cost is known and no single stage dominates. Judged by their number: the cost of taking turns is
    part of the cost per image, so the rate of the cores already includes it.
    """
    given = context.pipeline
    workers, crowd = given.ranks_per_node * given.workers, OVERSUBSCRIBED_WORKERS_PER_CORE * given.usable_cores
    if not given.is_contended or workers < crowd or (workers < 2 * crowd and (given.cost is None or dominant_stage(context))):
        return None
    if given.cost is not None and given.core_bound_rate is None:
        return None  # too few cores for any number of workers
    most = f"; they could load {context.format_rate(given.core_bound_rate)} a {context.device} at the most" if given.core_bound_rate else ""
    return RootCause("oversubscribed", f"{pluralize(workers, 'worker')} take turns on {pluralize(given.usable_cores, 'core')}{most}")


def dominant_stage(context: _CauseContext) -> RootCause | None:
    """The only stage that explains nearly all of the missing time.

    Does not apply if idle cores have room for more workers.
    """
    given, cost = context.pipeline, context.pipeline.cost
    if cost is None or given.core_bound_rate is None or _more_workers_gain(given) or _cores_keep_up(given):
        return None
    there = [stage for stage in CPU_STAGES if stage in cost.cpu_s_by_stage]
    free = {stage: rate for stage in there if (rate := given.rate_from_cores(cost.cpu_s_without(stage) + given.main_process_cpu_s))}
    lacking_s = 1 / given.core_bound_rate - 1 / given.device_rate
    enough = [stage for stage, rate in free.items() if 1 / given.core_bound_rate - 1 / rate >= DOMINANT_STAGE_FRACTION * lacking_s]
    if enough != [cost.costliest_stage]:
        return None
    stage = cost.costliest_stage
    without = f"without it {format_3sig(free[stage])}" if isfinite(free[stage]) else "and nothing else costs any"
    return RootCause(
        stage,
        f"{stage} takes {cost.cpu_s_by_stage[stage] / cost.cpu_s:.0%} of the core time that an {context.sample_unit} costs: "
        f"{pluralize(given.usable_cores, 'core')} give{'s' if given.usable_cores == 1 else ''} "
        f"{context.format_rate(given.core_bound_rate)} a {context.device}, {without}",
    )


def busy_cores(context: _CauseContext) -> RootCause | None:
    """All cores busy, with a loader that does not report its cost per image."""
    given, busy = context.pipeline, context.pipeline.cpu_usage
    if given.cost is not None or busy is None or not busy.is_saturated:
        return None
    all_busy = f"all {format_3sig(busy.usable_cores)} usable cores are busy, {format_3sig(busy.job_cores)} with the job itself"
    if busy.is_shared:
        return RootCause("", f"{all_busy} and {format_3sig(busy.other_cores)} with others: which of the two is too much cannot be told")
    return RootCause("too-few-cores", all_busy)


def too_few_cores(context: _CauseContext) -> RootCause | None:
    given = context.pipeline
    if given.cost is None or _more_workers_gain(given) or _cores_keep_up(given):
        return None
    if given.core_bound_rate is None and not given.is_contended:
        return None
    gives = (
        f"they give {context.format_rate(given.core_bound_rate)} a {context.device}"
        if given.core_bound_rate
        else f"training alone takes {given.trainer_cores}"
    )
    keeps_up = f"keeping up takes {pluralize(given.whole_cores_needed or 0.0, 'core')} a {context.device}"
    if given.is_handoff_bound:
        keeps_up = (
            f"with {pluralize(given.whole_cores_needed or 0.0, 'core')} one trainer process hands over "
            f"{context.format_rate(given.max_rate)}"
        )
    return RootCause(
        "too-few-cores",
        f"no number of workers can feed {context.devices_phrase} from {pluralize(given.usable_cores, 'core')}: {gives}; {keeps_up}",
    )


def too_few_workers(context: _CauseContext) -> RootCause | None:
    """All workers busy, on cores that are not."""
    given = context.pipeline
    wanted, useful = given.workers_needed, given.max_useful_workers
    if wanted is None or useful is None or given.cost is None or given.core_bound_rate is None:
        return None
    best, by_workers = min(wanted, useful), given.worker_bound_rate or 0.0
    if best <= given.workers:
        return None
    if given.is_contended and given.cpu_usage is not None:
        return RootCause(
            "",
            f"all {format_3sig(given.cpu_usage.usable_cores)} usable cores are busy, and loading needs not so many: by what cannot be told",
        )
    has = (
        f"{pluralize(given.workers, 'worker')} a {context.device} give{'s' if given.workers == 1 else ''} {context.format_rate(by_workers)}"
    )
    if by_workers >= given.device_rate:
        return RootCause("", f"{has}, which on the mean is enough: for what the {context.device} waits cannot be told")
    worker_s = given.worker_image_s or 0.0
    if best < worker_s * given.max_rate <= worker_s * given.core_bound_rate:
        more = f"; more than {MAX_WORKERS_PER_CORE} per core fill the memory"
        return RootCause("too-few-workers", f"{has}; {best} would give {format_3sig(best / worker_s)}{more}")
    if given.core_bound_rate >= given.max_rate:
        keeps_up = "would keep up, and there are cores for them"
        if given.is_handoff_bound:
            keeps_up = f"would give {format_3sig(given.max_rate)}, and no more is handed over by one trainer process"
        return RootCause("too-few-workers", f"{has}; {best} {keeps_up}")
    return RootCause(
        "too-few-workers",
        f"{has}; {best} would give {format_3sig(given.core_bound_rate)}, and no more can be had from "
        f"{pluralize(given.usable_cores, 'core')}",
    )


CAUSE_RULES: tuple[Callable[[_CauseContext], RootCause | None], ...] = (
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
