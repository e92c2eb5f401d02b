"""The sentences of every loss of a scaling job: what it costs, and the numbers that show it."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import assert_never

from ddpbench.analysis.scaling.ladder import MAX_EFFICIENCY
from ddpbench.analysis.scaling.runs import ScalingRuns, scaling_runs
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import SkippedMeasurement, ddp_role
from ddpbench.record.scaling_loss import (
    Contention,
    DdpLoss,
    InputLoss,
    Losses,
    LossName,
    NearIdeal,
    NotMeasured,
    ScalingEvidence,
    SlowAllReduce,
    SmallBatch,
    StragglerLoss,
    TooFewRounds,
    UndecidedLoss,
    UnexplainedLoss,
    UnreliableBaseline,
)
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.report.messages.bottlenecks import MORE_ROUNDS, Explanation, competing_text, likely_text, straggler_phrase
from ddpbench.report.messages.checks import baseline_doubts_text
from ddpbench.report.messages.roles import role_name, skip_reason

LOSS_NAMES: dict[LossName, str] = {
    "smaller-batch": "smaller batch",
    "contention": "contention",
    "data": "data",
    "exposed-comm": "exposed communication",
    "straggler": "straggler",
    "ddp": "DDP",
    "residual": "residual",
    "slower-ranks": "slower ranks",
}
"""The losses as printed."""

SATURATED_BUSBW_FRACTION = 0.7
"""All-reduce that reaches this fraction of the measured bus bandwidth is close to the limit of the links."""


def losses_text(losses: Iterable[LossName]) -> str:
    """``data or contention``, if their rounds do not separate them."""
    return " or ".join(LOSS_NAMES[name] for name in losses)


def explain_loss(evidence: ScalingEvidence, job: Job) -> Explanation:
    """What ``evidence`` shows of a scaling job."""
    match evidence:
        case NearIdeal():
            ranks = _runs(job).world_size
            return Explanation(f"{ranks} ranks reach {1 - evidence.loss_fraction:.1%} of ideal throughput", _losses(evidence.losses))
        case UnreliableBaseline():
            return Explanation(
                f"efficiency {evidence.efficiency:.1%} exceeds {MAX_EFFICIENCY:.0%}: unreliable 1-rank baseline",
                baseline_doubts_text(evidence.doubts, _final(job)),
            )
        case SlowAllReduce():
            return Explanation(
                f"{_links(_final(job))} limits scaling: exposed communication costs {_ideal(evidence)}", _link_usage(evidence)
            )
        case Contention():
            shared = "host, power and bus" if _final(job).environment.device_type == "cuda" else "cores, caches and memory"
            others = "; other processes took cores too" if evidence.has_noisy_neighbour else ""
            return Explanation(
                f"ranks compete for {shared}: independent ranks lose {_ideal(evidence)}",
                f"a step without communication takes {format_3sig(evidence.lost_ms)} ms longer on all ranks at once than on one{others}",
            )
        case InputLoss():
            return Explanation(
                f"data loading costs {_ideal(evidence)}",
                f"{format_3sig(evidence.lost_ms)} ms of each step, compared to batches on the device",
            )
        case StragglerLoss():
            lost = f"{format_3sig(evidence.lost_ms)} ms of each step"
            if evidence.rank is None or evidence.slow_in is None or evidence.excess_fraction is None:
                return Explanation(
                    f"waiting for other ranks costs {_ideal(evidence)}",
                    f"no rank is the slowest in every round; {lost}",
                )
            host = next(place.host for place in _final(job).environment.placements if place.rank == evidence.rank)
            slow_in = straggler_phrase(evidence.slow_in, _final(job))
            return Explanation(
                f"waiting for rank {evidence.rank} ({host}) costs {_ideal(evidence)}",
                f"it is {evidence.excess_fraction:.0%} slower than the others in every round: {slow_in}; {lost}",
            )
        case DdpLoss():
            cost = evidence.comm_cost_ms
            return Explanation(
                f"ranks compute more slowly in DDP than independently, which costs {_ideal(evidence)}",
                f"{format_3sig(evidence.lost_ms)} ms per step without sync, while all-reduce overlaps backward"
                + (f"; other ranks cost {format_3sig(cost)} ms per step in total" if cost is not None else ""),
            )
        case SmallBatch():
            return Explanation(
                f"batch {_final(job).config.batch_size} per rank is too little work: the smaller batch costs {_ideal(evidence)}",
                f"a 1-rank step with that batch takes {format_3sig(evidence.lost_ms)} ms more than its share of a step with the full batch",
            )
        case UnexplainedLoss():
            return Explanation(f"unknown causes cost {_ideal(evidence)}", _losses(evidence.losses))
        case TooFewRounds():
            verb = "is" if evidence.rounds == 1 else "are"
            return Explanation(f"{pluralize(evidence.rounds, 'round')} {verb} too few to attribute losses", _losses(evidence.losses))
        case NotMeasured():
            unmeasured = [role_name(ddp_role(ranks)) for ranks in evidence.world_sizes]
            return Explanation(
                f"no rounds with {' and '.join(unmeasured)}: losses not measured",
                next(skip_reason(each) for each in _skipped(job) if each.what == ddp_role(evidence.world_sizes[-1])),
            )
        case UndecidedLoss():
            return Explanation(
                competing_text(evidence.first, evidence.first_fraction, evidence.second, evidence.second_fraction),
                f"{likely_text(evidence.first, explain_loss(evidence.likely, job))}; {MORE_ROUNDS} would decide",
            )
        case _:
            assert_never(evidence)


def _runs(job: Job) -> ScalingRuns:
    runs = scaling_runs(job)
    assert runs is not None, "a loss is of a scaling job"
    return runs


def _final(job: Job) -> Record:
    final = _runs(job).final
    assert final is not None, "a loss is of a run of all ranks"
    return final


def _ideal(evidence: SlowAllReduce | Contention | InputLoss | StragglerLoss | DdpLoss | SmallBatch | UnexplainedLoss) -> str:
    return f"{evidence.loss_fraction:.0%} of ideal throughput"


def _losses(losses: Losses) -> str:
    return ", ".join(f"{LOSS_NAMES[name]} {fraction:.1%}" for name, fraction in losses.items()) or "no losses"


def _links(record: Record) -> str:
    """What connects the ranks of ``record``: the network, or the links of one node."""
    hosts = list(dict.fromkeys(place.host for place in record.environment.placements))
    if len(hosts) > 1:
        return f"the network between {f'{hosts[0]} and {hosts[1]}' if len(hosts) == 2 else f'{len(hosts)} nodes'}"
    return f"the interconnect of the {'GPUs' if record.environment.device_type == 'cuda' else 'ranks'} on this node"


def _link_usage(evidence: SlowAllReduce) -> str:
    if evidence.allreduce_only_ms is None or evidence.total_bytes is None or evidence.num_buckets is None:
        return _losses(evidence.losses)
    sent = f"{format_3sig(evidence.total_bytes / 1e6)} MB per step in {pluralize(evidence.num_buckets, 'bucket')}"
    text = f"{sent}, {format_3sig(evidence.allreduce_only_ms)} ms for the all-reduce alone"
    if evidence.hidden_fraction is not None:
        text += f"; {evidence.hidden_fraction:.0%} of it overlaps backward"
    if evidence.busbw and evidence.max_busbw:
        text += f"; {_bandwidth_share(evidence.busbw, evidence.max_busbw)}"
    return text


def _bandwidth_share(busbw: float, max_busbw: float) -> str:
    share, reached, peak = busbw / max_busbw, format_3sig(busbw / 1e6), f"{format_3sig(max_busbw / 1e6)} MB/s"
    if share > 1:
        return f"busbw {reached} MB/s, above the {peak} measured before"
    conclusion = "saturated" if share >= SATURATED_BUSBW_FRACTION else "larger buckets may raise it"
    return f"busbw {reached} of {peak} measured: {conclusion}"


def _skipped(job: Job) -> list[SkippedMeasurement]:
    return job.scaling.skipped if job.scaling else []
