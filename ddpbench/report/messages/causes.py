"""The sentences of every root cause of a data-bound run, named or left open."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import assert_never

from ddpbench.analysis.pipeline.costs import costly_parts, loader_cost
from ddpbench.analysis.pipeline.model import MAX_WORKERS_PER_CORE
from ddpbench.record.bottleneck import DataWait
from ddpbench.record.record import Record
from ddpbench.record.root_cause import (
    BlockedWorkers,
    BusyCores,
    BusyCoresUnexplained,
    Cause,
    CauseEvidence,
    ComparedWorkers,
    CpuQuota,
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
    UndecidedCause,
)
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.record.trace import Trace
from ddpbench.report.messages.phrases import device_noun


def cause_name(cause: Cause | None) -> str:
    """``too few cores``, ``unknown``."""
    return cause.replace("-", " ") if cause else "unknown"


def cause_text(evidence: CauseEvidence, record: Record) -> str:
    """The numbers that show the cause, or the causes that remain possible."""
    on, image = device_noun(record.environment), record.sample_unit
    per_core = evidence.samples_per_s_per_core if isinstance(evidence, TooFewCores | TooFewWorkers) else None
    worth = f"; one more core per {on} adds {_rate(per_core, record)}" if per_core and not is_no_limit(per_core, record) else ""
    match evidence:
        case CpuQuota():
            return (
                f"a CPU quota of {format_3sig(evidence.usable_cores)} of {evidence.cores} cores withholds "
                f"{evidence.throttled_fraction:.0%} of the CPU time that the job needs"
            )
        case OneByOne():
            rates = f"{_rate(evidence.samples_per_s, record)}, whole batches {_rate(evidence.resident_samples_per_s, record)}"
            return f"the data fit into memory, but are fetched one by one and collated: {rates}"
        case SlowSampler():
            sampler = record.script.sampler if record.script and record.script.sampler else "the sampler"
            draws = f"{sampler} draws the indices of a batch in {format_3sig(evidence.batch_ms)} ms in the trainer process"
            return f"{draws}, {evidence.sampler_fraction:.0%} of the data wait: workers do not help"
        case SlowHandoff():
            busy = evidence.worker_busy_fraction
            idle = f", with workers {busy:.0%} busy" if busy is not None else ""
            return f"{_handoff_wait(evidence.handoff_fraction)}{idle}: the main process cannot take batches fast enough"
        case HandoffOrWorkers():
            return f"{_handoff_wait(evidence.handoff_fraction)}: handoff or worker speed, indistinguishable here"
        case HeadOfLine():
            average = f"average {_rate(evidence.worker_samples_per_s, record)}"
            if is_no_limit(evidence.worker_samples_per_s, record):
                average = f"are fast enough on average for any {on}"
            return f"{_out_of_order_wait(evidence.blocked_fraction)}; workers {average}"
        case HeadOfLineOrWorkers():
            return (
                f"{_out_of_order_wait(evidence.blocked_fraction)}; {pluralize(evidence.workers, 'worker')} would be just enough: "
                "head-of-line blocking or too few workers, indistinguishable here"
            )
        case ReadWait():
            return _read_wait(evidence, record)
        case ReadWaitOrCores():
            return f"{_read_wait(evidence, record)}; all cores are busy: storage or cores, indistinguishable here"
        case StorageRate():
            return f"storage delivers {_rate(evidence.samples_per_s, record)} per {on}"
        case ReadAndDecodeWait():
            return f"{_blocked(evidence, record)}: it waits for its file, which is read and decoded in one call"
        case BlockedWorkers():
            if evidence.single_rank_speedup is None:
                return f"{_blocked(evidence, record)}: more workers help unless they share what it waits for"
            return (
                f"{_blocked(evidence, record)}; a single rank loads {evidence.single_rank_speedup:.1f} times as fast: "
                "ranks wait for a shared resource"
            )
        case TriedWorkers():
            return f"{_blocked(evidence, record)}; {_tried(evidence)}"
        case ComparedWorkers():
            if record.verdict and record.verdict.cause:
                return f"{_worker_rate(evidence, record)}; {_tried(evidence)}"
            return f"{_worker_rate(evidence, record)}, but {_tried(evidence)}: cause unknown"
        case TimeOutsideSamples():
            taken = f"{format_3sig(evidence.sample_ms)} of the {format_3sig(evidence.wait_ms)} ms that the {on} waits per {image}"
            return f"dataset and collate function take {taken}: the rest passes elsewhere in the loader, such as in its sampler"
        case IdleWorkers():
            return f"workers are busy {evidence.busy_fraction:.0%} of the time, yet the {on} waits: cause unknown"
        case OversubscribedWorkers():
            oversubscribed = f"{pluralize(evidence.workers, 'worker')} share {pluralize(evidence.usable_cores, 'core')}"
            if evidence.core_samples_per_s is None or is_no_limit(evidence.core_samples_per_s, record):
                return oversubscribed
            return f"{oversubscribed}; the cores can load at most {_rate(evidence.core_samples_per_s, record)} per {on}"
        case DominantStage():
            faster = evidence.samples_per_s_without
            without = "and no other stage uses CPU time"
            if faster is not None:
                without = f"{'many times as many' if is_no_limit(faster, record) else format_3sig(faster)} without it"
            return (
                f"{evidence.stage} takes {evidence.cpu_fraction:.0%} of the CPU time per {image}: "
                f"{pluralize(evidence.usable_cores, 'core')} load{'s' if evidence.usable_cores == 1 else ''} "
                f"{_rate(evidence.samples_per_s, record)} per {on}, {without}"
            )
        case BusyCores():
            return _all_busy(evidence)
        case SharedBusyCores():
            return f"{_all_busy(evidence)} and {format_3sig(evidence.other_cores)} with other processes: either may be the cause"
        case TooFewCores():
            return f"{_too_few_cores(evidence, record)}{worth}"
        case TooFewWorkers():
            compared = record.script.sample_comparison if record.script else None
            condition = ", if they read the same samples as now" if compared and compared.changes_samples else ""
            return f"{_more_workers(evidence)}{worth if evidence.limited_by == 'cores' else ''}{condition}"
        case BusyCoresUnexplained():
            return f"all {format_3sig(evidence.usable_cores)} usable cores are busy, more than loading needs: cause unknown"
        case EnoughWorkers():
            if is_no_limit(evidence.samples_per_s, record):
                return f"a {image} costs the workers next to nothing: why the {on} waits is unknown"
            return f"{_worker_rate(evidence, record)}, enough on average: why the {on} waits is unknown"
        case UndecidedCause():
            ranked = ((evidence.first, evidence.first_fraction), (evidence.second, evidence.second_fraction))
            shares = (f"{cause_name(cause)} in {fraction:.0%}" for cause, fraction in ranked)
            return f"cause undecided: {', '.join(shares)} of resamples"
        case _:
            assert_never(evidence)


def parts_text(traces: Sequence[Trace], unit: str, dataset: str) -> str:
    """``of 12.4 ms per image: RandAugment 5.1, ToTensor 2.2``; empty if that is unknown. ``dataset`` is its class, or empty."""
    cost = loader_cost(trace.loader_stats for trace in traces)
    if cost is None or not (parts := costly_parts(cost, traces)):
        return ""
    rest = f"the rest of {dataset or 'the dataset'}"
    named = [f"{each.name or rest} {format_3sig(1000 * each.sample_s)}" for each in parts[:MAX_PARTS]]
    return f"of {format_3sig(1000 * cost.wall_s)} ms per {unit}: {', '.join(named)}"


MAX_PARTS = 4

MAX_RATE_FACTOR = 20
"""A computed rate this many times that of the device is none that anything could be measured at."""


def is_no_limit(samples_per_s: float, record: Record) -> bool:
    """Whether a part with this rate is so much faster than the device that its rate says nothing."""
    evidence = record.verdict.evidence if record.verdict else None
    return isinstance(evidence, DataWait) and samples_per_s > MAX_RATE_FACTOR * evidence.device_samples_per_s


def _rate(samples_per_s: float, record: Record) -> str:
    return f"{format_3sig(samples_per_s)} {record.sample_unit}s/s"


def _handoff_wait(handoff_fraction: float) -> str:
    return f"{handoff_fraction:.0%} of the data wait passes after the worker has finished the batch"


def _out_of_order_wait(blocked_fraction: float) -> str:
    return f"for {blocked_fraction:.0%} of the data wait a later batch was ready, but not the next one"


def _read_wait(evidence: ReadWait | ReadWaitOrCores, record: Record) -> str:
    return (
        f"a worker waits {format_3sig(evidence.read_wait_ms)} of {format_3sig(evidence.sample_ms)} ms per {record.sample_unit} for its file"
    )


def _tried(evidence: TriedWorkers | ComparedWorkers) -> str:
    instead = f"{pluralize(evidence.more_workers, 'worker')} instead of {evidence.workers}"
    did, note = ("loaded", ", without training") if evidence.is_loader_only else ("trained", "")
    return f"{instead} {did} {format_3sig(evidence.gain)} times as fast{note}"


def _blocked(evidence: ReadAndDecodeWait | BlockedWorkers | TriedWorkers, record: Record) -> str:
    loading = "a worker" if record.workers else "the trainer process"
    waits = f"waits {format_3sig(evidence.blocked_ms)} of {format_3sig(evidence.sample_ms)} ms per {record.sample_unit}"
    return f"{loading} {waits}, but not for a core"


def _all_busy(evidence: BusyCores | SharedBusyCores) -> str:
    return f"all {format_3sig(evidence.usable_cores)} usable cores are busy, {format_3sig(evidence.job_cores)} with this job"


def _too_few_cores(evidence: TooFewCores, record: Record) -> str:
    on, rate = device_noun(record.environment), evidence.core_samples_per_s
    devices = f"this {on}" if evidence.ranks == 1 else f"{evidence.ranks} {on}s"
    supply = f"training alone uses {evidence.trainer_cores}" if rate is None else f"at most {_rate(rate, record)} per {on}"
    needed = pluralize(evidence.cores_needed, "core")
    demand = f"keeping up needs {needed} per {on}"
    if evidence.handoff_samples_per_s is not None:
        demand = f"{needed} would deliver {_rate(evidence.handoff_samples_per_s, record)}, the most a trainer process receives"
    return f"{pluralize(evidence.usable_cores, 'core')} cannot feed {devices} with any number of workers: {supply}; {demand}"


def _worker_rate(evidence: EnoughWorkers | ComparedWorkers, record: Record) -> str:
    """``4 workers per GPU deliver 870 images/s``."""
    on, verb = device_noun(record.environment), "delivers" if evidence.workers == 1 else "deliver"
    return f"{pluralize(evidence.workers, 'worker')} per {on} {verb} {_rate(evidence.samples_per_s, record)}"


def _more_workers(evidence: TooFewWorkers) -> str:
    more = f"{pluralize(evidence.more_workers, 'worker')} instead of {evidence.workers}"
    would_deliver = f"{more} would deliver {format_3sig(evidence.more_samples_per_s)}"
    match evidence.limited_by:
        case "device":
            return f"{more} would keep up on these cores"
        case "handoff":
            return f"{would_deliver}, the most a trainer process receives"
        case "memory":
            return f"{would_deliver}; more than {MAX_WORKERS_PER_CORE} per core would exhaust memory"
        case "cores":
            return f"{would_deliver}, the limit of {pluralize(evidence.usable_cores, 'core')}"
        case _:
            assert_never(evidence.limited_by)
