"""The sentences of every bottleneck: what it costs, and the numbers that show it."""

from __future__ import annotations

from math import fsum
from typing import NamedTuple

from typing_extensions import assert_never

from ddpbench.analysis.pipeline.interference import decodes_on_device
from ddpbench.record.bottleneck import (
    BatchPreparation,
    Bottleneck,
    BottleneckEvidence,
    CollectiveWaits,
    CopyWait,
    CoresTakenByOthers,
    CoresTakenByWorkers,
    DataWait,
    DecodesOnDevice,
    EpochStarts,
    HiddenSync,
    HostBatches,
    IdleGpu,
    LoaderInBackground,
    OversubscribedRanks,
    PhaseShares,
    ScriptTime,
    ShortHostLead,
    SlowRank,
    StarvedRanks,
    StragglerKind,
    SyncSlowdown,
    TooShort,
    Undecided,
    UnequalBatches,
    UnexplainedTime,
)
from ddpbench.record.record import Record
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.report.messages.phrases import device_clause, device_noun, format_starved_ranks

STRAGGLER_PHRASES: dict[StragglerKind, str] = {
    "data": "data wait",
    "host-to-device": "host-to-device copies",
    "compute": "slow compute",
    "clock": "lower GPU clock",
    "host": "slow host",
}
STRAGGLER_PHRASES_CPU: dict[StragglerKind, str] = {"host-to-device": "batch preparation"}
"""On CPU, where nothing is copied."""

DECIDING_MEASUREMENTS: dict[Bottleneck, str] = {
    "straggler": "the control runs of a diagnosis",
    "loader-contends-cpu": "training with the loader in the background",
    "loader-contends-gpu": "training with the loader in the background",
    "noisy-neighbour": "the same run on otherwise idle cores",
    "epoch-start-bound": "more epochs",
    "data-bound": "compute-only training",
    "host-to-device-bound": "training on batches in pinned host memory",
    "load-imbalance": "batches of equal size",
    "launch-bound": "a profiler trace",
    "sync-bound": "training without gradient sync",
}
"""The measurement that decides on a bottleneck; compute-bound is what remains if none of them applies."""

MORE_ROUNDS = "more rounds"
"""What decides if all measurements are there."""


class Explanation(NamedTuple):
    """Two sentences on a finding: the bottleneck and its share, for a non-expert, and the evidence in numbers."""

    claim: str
    reason: str


def explain_bottleneck(evidence: BottleneckEvidence, record: Record) -> Explanation:
    """What ``evidence`` shows of ``record``."""
    on = device_noun(record.environment)
    match evidence:
        case SlowRank():
            return Explanation(
                f"rank {evidence.rank} ({_location(evidence.rank, record)}) is {evidence.excess_fraction:.0%} slower than the others: "
                f"{straggler_phrase(evidence.slow_in, record)}",
                f"own time (step minus sync) {format_3sig(evidence.own_ms)} ms, "
                f"other ranks {format_3sig(evidence.others_own_ms)}, in every round; "
                f"costs {format_3sig(evidence.cost_samples_per_s)} {record.sample_unit}s/s"
                + (f"; {_largest_batch(evidence.largest_over_mean)}" if evidence.largest_over_mean else ""),
            )
        case LoaderInBackground():
            return Explanation(
                _contention_claim(evidence.slowdown_fraction, record),
                f"a compute-only step takes {format_3sig(evidence.compute_only_ms)} ms, {format_3sig(evidence.with_loader_ms)} with the "
                f"loader in the background; data wait is {format_3sig(evidence.data_wait_ms)} of {format_3sig(evidence.step_ms)} ms",
            )
        case CoresTakenByWorkers():
            return Explanation(
                _contention_claim(evidence.slowdown_fraction, record),
                f"a computing rank gets {format_3sig(evidence.rank_cores)} of {pluralize(evidence.needed_cores, 'core')}; loader "
                f"workers keep {format_3sig(evidence.worker_cores)} of {format_3sig(evidence.usable_cores)} busy",
            )
        case StarvedRanks():
            return Explanation(
                f"other processes appear to take cores: {format_starved_ranks(record, evidence.cores_by_rank)}",
                f"the job needs {evidence.job_cores} of {pluralize(evidence.usable_cores, 'usable core')} "
                "and hardly waits for data or other ranks",
            )
        case CoresTakenByOthers():
            before = evidence.other_cores_before
            at_start = f"; {format_3sig(before)} were busy before the job started" if before is not None else ""
            return Explanation(
                f"other processes keep {format_3sig(evidence.other_cores)} of the job's {evidence.cores} usable cores busy",
                f"the job got {format_3sig(evidence.job_cores)} cores and none was idle{at_start}; "
                "on a virtual machine, its host counts as another process",
            )
        case EpochStarts():
            length = f" of {format_3sig(evidence.epoch_s)} s" if evidence.epoch_s is not None else ""
            start = f" for {format_3sig(evidence.start_s)} s" if evidence.start_s is not None else ""
            workers = "persistent workers" if evidence.keeps_workers else "workers end, start again, and"
            return Explanation(
                f"{device_clause(record, 'wait')} for the start of epochs {evidence.fraction:.0%} of the time",
                f"at every epoch{length}, the {workers} load their first batch{start}; {evidence.workers} per rank",
            )
        case DataWait():
            return Explanation(
                f"{device_clause(record, 'wait')} for data {evidence.wait_fraction:.0%} of the time",
                f"the loader delivers {format_3sig(evidence.loader_samples_per_s)} {record.sample_unit}s/s per {on}; the {on} "
                f"could train {format_3sig(evidence.device_samples_per_s)}",
            )
        case BatchPreparation():
            return Explanation(
                f"{device_clause(record, 'spend')} {evidence.prepare_ms / evidence.step_ms:.0%} of each step on batch preparation",
                f"the trainer process prepares each batch for {format_3sig(evidence.prepare_ms)} of {format_3sig(evidence.step_ms)} ms "
                "and does not train meanwhile",
            )
        case CopyWait():
            return Explanation(
                f"{device_clause(record, 'wait')} for host-to-device copies {evidence.copy_ms / evidence.step_ms:.0%} of the time",
                f"copies stall the {on} for {format_3sig(evidence.copy_ms)} of {format_3sig(evidence.step_ms)} ms{_bandwidths(evidence)}",
            )
        case HostBatches():
            return Explanation(
                f"steps on batches in host memory take {evidence.slowdown_fraction:.0%} longer than on batches on the {on}",
                f"{format_3sig(evidence.extra_ms)} of {format_3sig(evidence.step_ms)} ms are copies and host work, with any loader",
            )
        case IdleGpu():
            return Explanation(
                _LAUNCH_CLAIM,
                f"kernels run for {format_3sig(evidence.kernel_ms)} of the {format_3sig(evidence.available_ms)} ms that "
                "are not data or sync waits",
            )
        case ShortHostLead():
            return Explanation(
                _LAUNCH_CLAIM,
                f"the host runs only {format_3sig(evidence.host_lead_ms)} ms ahead of the GPU in a step of "
                f"{format_3sig(evidence.step_ms)} ms",
            )
        case UnequalBatches():
            return Explanation(
                f"{device_clause(record, 'wait')} for larger batches of other ranks {evidence.wait_ms / evidence.step_ms:.0%} of the time",
                f"{_largest_batch(evidence.largest_over_mean)}; "
                f"others wait {format_3sig(evidence.wait_ms)} of {format_3sig(evidence.step_ms)} ms for its rank, besides communication",
            )
        case CollectiveWaits():
            return Explanation(
                f"{device_clause(record, 'wait')} for gradient sync {evidence.wait_ms / evidence.step_ms:.0%} of the time",
                f"{format_3sig(evidence.wait_ms)} of {format_3sig(evidence.step_ms)} ms, {_gradients(record)}",
            )
        case SyncSlowdown():
            return Explanation(
                f"gradient sync makes each step {evidence.slowdown_fraction:.0%} longer "
                f"({evidence.slowdown_low:.0%} to {evidence.slowdown_high:.0%})",
                f"{format_3sig(evidence.synced_ms)} ms with sync, {format_3sig(evidence.independent_ms)} with independent ranks; "
                f"timers show {evidence.wait_fraction:.0%} of the baseline waiting for it, {_gradients(record)}",
            )
        case PhaseShares():
            return Explanation(
                compute_share(evidence),
                f"forward {format_3sig(evidence.forward_ms)}, backward {format_3sig(evidence.backward_ms)}, "
                f"optimizer {format_3sig(evidence.optimizer_ms)} of {format_3sig(evidence.step_ms)} ms{_unavoidable_wait(evidence)}",
            )
        case OversubscribedRanks():
            return Explanation(
                f"too few cores: {_demand(evidence)} > {pluralize(evidence.usable_cores, 'usable core')}",
                f"threads share cores and wait for each other; {_likely(evidence, record)}",
            )
        case DecodesOnDevice():
            return Explanation(
                f"{device_clause(record, 'wait')} for batches decoded on the GPU {evidence.wait_fraction:.0%} of the time",
                "a run cannot distinguish a slow loader from one that takes GPU time from training",
            )
        case UnexplainedTime():
            return Explanation(
                f"{evidence.unexplained_ms / evidence.step_ms:.0%} of each step is not explained by its phases",
                f"{format_3sig(evidence.unexplained_ms)} of {format_3sig(evidence.step_ms)} ms of wall time belong to no phase",
            )
        case HiddenSync():
            return Explanation(
                "CUDA graphs show only in the last step of a round how long ranks wait for each other",
                f"backward and gradient sync take {format_3sig(evidence.backward_ms)} of {format_3sig(evidence.step_ms)} ms, with waits",
            )
        case ScriptTime() if record.script is not None and record.script.step == "update":
            return Explanation(
                f"the script spends {evidence.script_ms / evidence.step_ms:.0%} of each step between its update and the next forward",
                f"{format_3sig(evidence.script_ms)} of {format_3sig(evidence.step_ms)} ms: waits for data, logging, metrics, schedules",
            )
        case ScriptTime():
            return Explanation(
                f"the script spends {evidence.script_ms / evidence.step_ms:.0%} of each step between its update and the next batch",
                f"{format_3sig(evidence.script_ms)} of {format_3sig(evidence.step_ms)} ms: logging, metrics, schedules, weight averages",
            )
        case TooShort():
            return Explanation(
                f"{pluralize(evidence.rounds, 'round')} and {pluralize(evidence.steps, 'step')} are too few for a verdict",
                _likely(evidence, record),
            )
        case Undecided():
            return Explanation(
                competing_text(evidence.first, evidence.first_fraction, evidence.second, evidence.second_fraction),
                f"{likely_text(evidence.first, explain_bottleneck(evidence.likely, record))}; {_deciding(evidence)} would decide",
            )
        case _:
            assert_never(evidence)


def _largest_batch(largest_over_mean: float) -> str:
    return f"the largest batch of a step has {format_3sig(largest_over_mean)} times the elements of an average one"


def _unavoidable_wait(evidence: PhaseShares) -> str:
    wait_ms = evidence.unavoidable_wait_ms
    if not wait_ms:
        return ""
    return f"; {format_3sig(wait_ms)} ms are waits for data, of which no tried or predicted change of the loader saves a tenth of a step"


def compute_share(evidence: PhaseShares) -> str:
    """``compute takes 96% of each step``."""
    share = fsum((evidence.forward_ms, evidence.backward_ms, evidence.optimizer_ms)) / evidence.step_ms
    return f"compute takes {share:.0%} of each step"


def bottleneck_name(kind: str) -> str:
    """The bottleneck of a resample: ``data-bound``, ``none of them``."""
    return "none of them" if kind == "inconclusive" else kind


def competing_text(first: str, first_fraction: float, second: str, second_fraction: float) -> str:
    """``data-bound (60% of resamples) or none of them (40% of resamples)``."""
    ranked = ((first, first_fraction), (second, second_fraction))
    return " or ".join(f"{bottleneck_name(kind)} ({share:.0%} of resamples)" for kind, share in ranked)


def likely_text(kind: str, explanation: Explanation) -> str:
    """``most likely sync-bound: ...``, for an inconclusive verdict."""
    return explanation.claim if kind == "inconclusive" else f"most likely {kind}: {explanation.claim}"


def _likely(evidence: OversubscribedRanks | TooShort, record: Record) -> str:
    return likely_text(evidence.likely_kind, explain_bottleneck(evidence.likely, record))


def _deciding(evidence: Undecided) -> str:
    """What would decide between the two: their measurements, or more rounds if they are there already."""
    competing = () if evidence.has_controls else (evidence.first, evidence.second)
    return " or ".join(dict.fromkeys(DECIDING_MEASUREMENTS[kind] for kind in competing if kind in DECIDING_MEASUREMENTS)) or MORE_ROUNDS


def _contention_claim(slowdown_fraction: float, record: Record) -> str:
    contention = "decodes on the training GPU" if decodes_on_device(record) else "competes with training for cores"
    return f"the data loader {contention}: steps take {slowdown_fraction:.0%} longer while it runs"


_LAUNCH_CLAIM = "the host launches kernels more slowly than the GPU runs them"


def _location(rank: int, record: Record) -> str:
    """``node-01, GPU 2``; the host alone on CPU."""
    place = next(place for place in record.environment.placements if place.rank == rank)
    return f"{place.host}, GPU {place.local_rank}" if record.environment.device_type == "cuda" else place.host


def straggler_phrase(slow_in: StragglerKind, record: Record) -> str:
    """Where a straggler loses its time: ``data wait``."""
    on_cpu = record.environment.device_type != "cuda" and slow_in in STRAGGLER_PHRASES_CPU
    return (STRAGGLER_PHRASES_CPU if on_cpu else STRAGGLER_PHRASES)[slow_in]


def _bandwidths(evidence: CopyWait) -> str:
    if evidence.pageable_bytes_per_s is None or evidence.pinned_bytes_per_s is None:
        return ""
    pageable, pinned = (format_3sig(rate / 1e9) for rate in (evidence.pageable_bytes_per_s, evidence.pinned_bytes_per_s))
    return f"; bandwidth {pageable} GB/s from pageable memory, {pinned} from pinned"


def _gradients(record: Record) -> str:
    return f"gradients of {format_3sig(record.num_parameters / 1e6)} million parameters on {record.world_size} ranks"


def _demand(evidence: OversubscribedRanks) -> str:
    """``4 ranks x 16 workers + 4``, ``2 ranks x 3 threads``."""
    ranks = pluralize(evidence.ranks, "rank")
    if evidence.workers:
        return f"{ranks} x {pluralize(evidence.workers, 'worker')} + {evidence.ranks * evidence.threads_per_rank}"
    return f"{ranks} x {pluralize(evidence.threads_per_rank, 'thread')}"
