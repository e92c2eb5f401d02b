"""The sentences of every root cause of a data-bound run, named or left open."""

from __future__ import annotations

from typing import assert_never

from ddpbench.analysis.pipeline.model import MAX_WORKERS_PER_CORE
from ddpbench.record.record import Record
from ddpbench.record.root_cause import (
    BlockedWorkers,
    BusyCores,
    BusyCoresUnexplained,
    Cause,
    CauseEvidence,
    CpuQuota,
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
    UndecidedCause,
)
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.report.messages.phrases import device_noun


def cause_name(cause: Cause | None) -> str:
    """``too few cores``, ``unknown``."""
    return cause.replace("-", " ") if cause else "unknown"


def cause_text(evidence: CauseEvidence, record: Record) -> str:
    """The numbers that show the cause, or between what it is left open."""
    on, image = device_noun(record.environment), record.sample_unit
    match evidence:
        case CpuQuota():
            return (
                f"a quota of {format_3sig(evidence.usable_cores)} of {evidence.cores} cores kept {evidence.throttled_fraction:.0%} of the "
                "core time from the job that it asked for"
            )
        case SlowHandoff():
            working = evidence.worker_busy_fraction
            idle = f", and the workers are busy for {working:.0%} of their time" if working is not None else ""
            return f"{_after_made(evidence.handoff_fraction)}{idle}: the trainer process takes batches over too slowly"
        case HandoffOrWorkers():
            return f"{_after_made(evidence.handoff_fraction)}: taking it over, or making it, which cannot be told apart"
        case HeadOfLine():
            made = _rate(evidence.worker_samples_per_s, record)
            return f"{_out_of_turn(evidence.blocked_fraction)}; on the mean the workers make {made}"
        case HeadOfLineOrWorkers():
            return (
                f"{_out_of_turn(evidence.blocked_fraction)}; {pluralize(evidence.workers, 'worker')} would be just enough, "
                "so these two cannot be told apart"
            )
        case ReadWait():
            return _read_wait(evidence, record)
        case ReadWaitOrCores():
            return f"{_read_wait(evidence, record)}, and all cores are busy: storage and cores cannot be told apart"
        case StorageRate():
            return f"its files can be read at {_rate(evidence.samples_per_s, record)} a {on}"
        case ReadAndDecodeWait():
            return f"{_blocked(evidence, record)}: for its file, which it reads and decodes in one"
        case BlockedWorkers():
            if evidence.single_rank_speedup is None:
                return f"{_blocked(evidence, record)}: whether more workers would help cannot be told"
            return (
                f"{_blocked(evidence, record)}; one rank alone gets {evidence.single_rank_speedup:.1f} times as many: "
                "they share what they wait for"
            )
        case IdleWorkers():
            return (
                f"the workers make batches for {evidence.busy_fraction:.0%} of their time, and yet the {on} waits: for what cannot be told"
            )
        case OversubscribedWorkers():
            turns = f"{pluralize(evidence.workers, 'worker')} take turns on {pluralize(evidence.usable_cores, 'core')}"
            if evidence.core_samples_per_s is None:
                return turns
            return f"{turns}; they could load {_rate(evidence.core_samples_per_s, record)} a {on} at the most"
        case DominantStage():
            rate = evidence.samples_per_s_without
            without = f"without it {format_3sig(rate)}" if rate is not None else "and nothing else costs any"
            return (
                f"{evidence.stage} takes {evidence.cpu_fraction:.0%} of the core time that an {image} costs: "
                f"{pluralize(evidence.usable_cores, 'core')} give{'s' if evidence.usable_cores == 1 else ''} "
                f"{_rate(evidence.samples_per_s, record)} a {on}, {without}"
            )
        case BusyCores():
            return _all_busy(evidence)
        case SharedBusyCores():
            return f"{_all_busy(evidence)} and {format_3sig(evidence.other_cores)} with others: which of the two is too much cannot be told"
        case TooFewCores():
            return _too_few_cores(evidence, record)
        case TooFewWorkers():
            return f"{_workers_give(evidence, record)}; {_more_workers(evidence)}"
        case BusyCoresUnexplained():
            return f"all {format_3sig(evidence.usable_cores)} usable cores are busy, and loading needs not so many: by what cannot be told"
        case EnoughWorkers():
            return f"{_workers_give(evidence, record)}, which on the mean is enough: for what the {on} waits cannot be told"
        case UndecidedCause():
            ranked = ((evidence.first, evidence.first_fraction), (evidence.second, evidence.second_fraction))
            shares = (f"{cause_name(cause)} in {fraction:.0%}" for cause, fraction in ranked)
            return f"the cause is open: {', '.join(shares)} of resamples"
        case _:
            assert_never(evidence)


def _rate(samples_per_s: float, record: Record) -> str:
    return f"{format_3sig(samples_per_s)} {record.sample_unit}s/s"


def _after_made(handoff_fraction: float) -> str:
    return f"{handoff_fraction:.0%} of the wait for a batch is after its worker has made it"


def _out_of_turn(blocked_fraction: float) -> str:
    return f"for {blocked_fraction:.0%} of the wait a later batch was ready, and not the one whose turn it was"


def _read_wait(evidence: ReadWait | ReadWaitOrCores, record: Record) -> str:
    return (
        f"of the {format_3sig(evidence.sample_ms)} ms that a worker takes for an {record.sample_unit} "
        f"it waits {format_3sig(evidence.read_wait_ms)} for its file"
    )


def _blocked(evidence: ReadAndDecodeWait | BlockedWorkers, record: Record) -> str:
    return (
        f"of the {format_3sig(evidence.sample_ms)} ms that a worker takes for an {record.sample_unit} "
        f"it waits {format_3sig(evidence.blocked_ms)}, and for no core"
    )


def _all_busy(evidence: BusyCores | SharedBusyCores) -> str:
    return f"all {format_3sig(evidence.usable_cores)} usable cores are busy, {format_3sig(evidence.job_cores)} with the job itself"


def _too_few_cores(evidence: TooFewCores, record: Record) -> str:
    on, rate = device_noun(record.environment), evidence.core_samples_per_s
    devices = f"this {on}" if evidence.ranks == 1 else f"{evidence.ranks} {on}s"
    gives = f"training alone takes {evidence.trainer_cores}" if rate is None else f"they give {_rate(rate, record)} a {on}"
    needed = pluralize(evidence.cores_needed, "core")
    keeps_up = f"keeping up takes {needed} a {on}"
    if evidence.handoff_samples_per_s is not None:
        keeps_up = f"with {needed} one trainer process hands over {_rate(evidence.handoff_samples_per_s, record)}"
    return f"no number of workers can feed {devices} from {pluralize(evidence.usable_cores, 'core')}: {gives}; {keeps_up}"


def _workers_give(evidence: TooFewWorkers | EnoughWorkers, record: Record) -> str:
    """``4 workers a GPU give 870 images/s``."""
    on, gives = device_noun(record.environment), "gives" if evidence.workers == 1 else "give"
    return f"{pluralize(evidence.workers, 'worker')} a {on} {gives} {_rate(evidence.samples_per_s, record)}"


def _more_workers(evidence: TooFewWorkers) -> str:
    would_give = f"{evidence.more_workers} would give {format_3sig(evidence.more_samples_per_s)}"
    match evidence.limited_by:
        case "device":
            return f"{evidence.more_workers} would keep up, and there are cores for them"
        case "handoff":
            return f"{would_give}, and no more is handed over by one trainer process"
        case "memory":
            return f"{would_give}; more than {MAX_WORKERS_PER_CORE} per core fill the memory"
        case "cores":
            return f"{would_give}, and no more can be had from {pluralize(evidence.usable_cores, 'core')}"
        case _:
            assert_never(evidence.limited_by)
