"""Verdict of a scaling job: the largest loss, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from ddpbench.analysis.bottleneck.verdict import with_repeatability
from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.evidence import MIN_ROUNDS_AND_STEPS_FOR_VERDICT
from ddpbench.analysis.resampling import resamples, single_rounds
from ddpbench.analysis.scaling.allreduce import AllReduceStats, allreduce_stats
from ddpbench.analysis.scaling.ladder import MAX_EFFICIENCY, ScalingPoint, compute_scaling_points
from ddpbench.analysis.scaling.runs import ScalingRuns, scaling_runs
from ddpbench.analysis.scaling.waterfall import (
    ALL_REDUCE,
    CONTENTION,
    DATA,
    DDP,
    RESIDUAL,
    SMALLER_BATCH,
    STRAGGLER,
    LossTerm,
    Waterfall,
    waterfall,
)
from ddpbench.analysis.summary import summarize
from ddpbench.record.checks import Check
from ddpbench.record.record import Job, Record
from ddpbench.record.scaling import Scaling, ddp_label
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.record.verdict import Verdict

MAX_LOSS_WHEN_SCALING = 0.03
"""Training scales if it loses less than this fraction of the ideal."""

SATURATED_BUSBW_FRACTION = 0.7
"""All-reduce that reaches this fraction of the measured bus bandwidth is close to the limit of the links."""


@dataclass(frozen=True)
class ScalingAnalysis:
    """Inputs of a scaling verdict."""

    runs: ScalingRuns
    breakdown: Waterfall
    points: list[ScalingPoint]
    allreduce: AllReduceStats | None

    @property
    def final(self) -> Record:
        assert self.runs.final is not None, "a way down leads somewhere"
        return self.runs.final

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(place.host for place in self.final.environment.placements))

    @property
    def run(self) -> CommandBuilder:
        """Command builder of the final run; with strong scaling, its batch is one rank's share."""
        return CommandBuilder(self.final, "scale")


def analyze_scaling(job: Job, runs: ScalingRuns) -> ScalingAnalysis | None:
    """Return the analysis of a scaling job.

    None without a waterfall from one rank to the final run, which needs the throughput of both.
    """
    way = waterfall(runs)
    if way is None:
        return None
    return ScalingAnalysis(runs, way, compute_scaling_points(runs, way), allreduce_stats(runs))


def scaling_verdict(analysis: ScalingAnalysis) -> Verdict:
    """Return the verdict from the means of the rounds."""
    way, worst, top = analysis.breakdown, analysis.breakdown.largest[0], analysis.points[-1]
    if top.baseline_doubts:
        return _baseline_in_doubt(top)
    if way.loss_fraction < MAX_LOSS_WHEN_SCALING:
        return Verdict(
            kind="scales",
            says=f"{analysis.runs.world_size} ranks keep {1 - way.loss_fraction:.1%} of {analysis.runs.world_size} times one",
            why=_losses_text(analysis),
        )
    return VERDICT_BY_LOSS[worst.name](analysis, worst)


def judge_scaling(job: Job, runs: ScalingRuns) -> None:
    """Set the verdict of ``job``, and add a check to each implausibly efficient scaling point."""
    found = analyze_scaling(job, runs)
    runs.scaling.verdict = _with_repeatability(found, job) if found else _out_of_time(runs.scaling)
    for rung in found.points if found else compute_scaling_points(runs, None):
        record = runs.ddp_by_ranks[rung.ranks]
        if rung.baseline_doubts and rung.efficiency:
            record.checks.append(
                Check(
                    code="implausible",
                    severity="warns",
                    sentence=(
                        f"{rung.efficiency.center:.1%} of {rung.ranks} times one rank; of the one rank: {'; '.join(rung.baseline_doubts)}"
                    ),
                    numbers={"efficiency": rung.efficiency.center},
                    hint="one rank is no measure before it runs as fast as any other: nothing else on the machine, more --rounds",
                )
            )


def _with_repeatability(analysis: ScalingAnalysis, job: Job) -> Verdict:
    """Return the verdict with the share of resamples that agree with it.

    Inconclusive if there are too few rounds.
    """
    plain, (rounds, _) = scaling_verdict(analysis), MIN_ROUNDS_AND_STEPS_FOR_VERDICT
    few = min(len(record.rounds) for record in analysis.runs.all_records() if record is not analysis.runs.allreduce_only)
    if few < rounds and plain.kind != "baseline-in-doubt":
        says = f"{pluralize(few, 'round')} {'is' if few == 1 else 'are'} too few to tell what is lost"
        return Verdict(kind="inconclusive", says=says, why=_losses_text(analysis))
    alone = _verdicts(single_rounds(job.records), job)
    if {each.kind for each in alone} != {plain.kind}:
        alone = _verdicts(resamples(job.records), job)
    return with_repeatability(plain, alone, has_controls=True)


def _verdicts(resampled: Iterable[Sequence[Record | None]], job: Job) -> list[Verdict]:
    """Return one verdict per resample from which a waterfall can be computed."""
    found = []
    for records in resampled:
        again = msgspec.structs.replace(job, records=[_with_own_estimate(record) for record in records if record])
        arms = scaling_runs(again)
        ways = analyze_scaling(again, arms) if arms else None
        found += [scaling_verdict(ways)] if ways else []
    return found


def _with_own_estimate(record: Record) -> Record:
    """Return the resampled record with the median throughput of its resampled rounds."""
    if record.throughput is None or not record.rounds:
        return record
    middle = median(timed.images_per_s for timed in record.rounds)
    return msgspec.structs.replace(record, throughput=msgspec.structs.replace(record.throughput, images_per_s=middle))


def _out_of_time(scaling: Scaling) -> Verdict | None:
    """Return "inconclusive" if time ran out before a scaling point had a round.

    None if the cause is another, which the page reports.
    """
    missing = [label for label in map(ddp_label, scaling.world_sizes) if label in scaling.skip_reasons]
    if not missing:
        return None
    return Verdict(
        kind="inconclusive",
        says=f"{' and '.join(missing)} had no round: what is lost on the way was not measured",
        why=scaling.skip_reasons[missing[-1]],
        next="a longer --time-limit",
    )


def _baseline_in_doubt(point: ScalingPoint) -> Verdict:
    assert point.efficiency is not None, "doubts come from an efficiency"
    return Verdict(
        kind="baseline-in-doubt",
        says=f"{point.efficiency.center:.1%} of {point.ranks} times one rank cannot be (above {MAX_EFFICIENCY:.0%}): the one rank was slow",
        why="; ".join(point.baseline_doubts),
    )


def _allreduce_verdict(analysis: ScalingAnalysis, term: LossTerm) -> Verdict:
    several = len(analysis.hosts) > 1
    links = f"the network between {_hosts_text(analysis.hosts)}" if several else _links_text(analysis.final)
    return Verdict(
        kind="network-bound" if several else "link-bound",
        says=f"{links} is the limit: {term.loss_fraction:.0%} of the ideal is lost to gradients on their way",
        why=_link_usage(analysis),
        next=_halve_gradients_command(analysis),
    )


def _link_usage(analysis: ScalingAnalysis) -> str:
    sent = analysis.allreduce
    if sent is None or sent.allreduce_only_ms is None:
        return _losses_text(analysis)
    sends = f"a step sends {format_3sig(sent.total_bytes / 1e6)} MB in {pluralize(len(sent.bucket_bytes), 'bucket')}"
    text = f"{sends}, which takes {format_3sig(sent.allreduce_only_ms)} ms alone"
    if sent.busbw and sent.max_busbw:
        share, reached, ceiling = sent.busbw / sent.max_busbw, format_3sig(sent.busbw / 1e6), f"{format_3sig(sent.max_busbw / 1e6)} MB/s"
        ends = "all that it gives" if share >= SATURATED_BUSBW_FRACTION else "larger buckets may get more of it"
        there = (
            f"{reached} of {ceiling} measured on it: {ends}" if share <= 1 else f"{reached} MB/s, above the {ceiling} measured on it before"
        )
        text += f"; that is {there}"
    if sent.hidden_fraction is not None:
        text += f"; backward hides {sent.hidden_fraction:.0%}"
    return text


def _contention_verdict(analysis: ScalingAnalysis, term: LossTerm) -> Verdict:
    record = analysis.final
    what = "host, power and bus" if record.environment.device_type == "cuda" else "cores, caches and memory"
    return Verdict(
        kind="contention-bound",
        says=f"ranks take {what} from each other: {term.loss_fraction:.0%} of the ideal is lost with every rank for itself",
        why=(
            f"a step without any communication takes {format_3sig(term.ms_per_step)} ms more on all ranks at "
            f"once than on one alone{_neighbour_note(analysis)}"
        ),
    )


def _data_verdict(analysis: ScalingAnalysis, term: LossTerm) -> Verdict:
    return Verdict(
        kind="data-bound",
        says=f"the ranks wait for data: {term.loss_fraction:.0%} of the ideal is lost to it",
        why=f"{format_3sig(term.ms_per_step)} ms of every step, which batches on the device do not cost",
        next=analysis.run.diagnose_command(),
    )


def _straggler_verdict(analysis: ScalingAnalysis, term: LossTerm) -> Verdict:
    slow = summarize(analysis.final).straggler
    who = f"rank {slow.rank} ({slow.host})" if slow else "now one rank, now another"
    why = (
        f"{slow.excess_fraction:.0%} more own time than the others, {slow.kind}, in every round"
        if slow
        else "no rank is the slowest in every round"
    )
    return Verdict(
        kind="straggler",
        says=f"{term.loss_fraction:.0%} of the ideal is lost to waiting for {who}",
        why=f"{why}; {format_3sig(term.ms_per_step)} ms of every step",
        rank=slow.rank if slow else None,
    )


def _ddp_verdict(analysis: ScalingAnalysis, term: LossTerm) -> Verdict:
    cost = analysis.allreduce.comm_cost_by_arms_ms if analysis.allreduce else None
    return Verdict(
        kind="ddp-bound",
        says=f"ranks compute more slowly in DDP than for themselves: {term.loss_fraction:.0%} of the ideal",
        why=f"{format_3sig(term.ms_per_step)} ms a step of their own time, in which the all-reduce works beside the backward"
        + (f"; all that other ranks cost a step is {format_3sig(cost)} ms" if cost is not None and cost > 0 else ""),
        next=_halve_gradients_command(analysis),
    )


def _batch_verdict(analysis: ScalingAnalysis, term: LossTerm) -> Verdict:
    return Verdict(
        kind="batch-bound",
        says=(
            f"{analysis.final.config.batch_size} a rank is too little work: {term.loss_fraction:.0%} of the "
            "ideal is lost to the smaller batch"
        ),
        why=f"a step of one rank with that share takes {format_3sig(term.ms_per_step)} ms more than its part of the whole batch",
    )


def _unexplained_verdict(analysis: ScalingAnalysis, term: LossTerm) -> Verdict:
    return Verdict(kind="unexplained", says=f"{term.loss_fraction:.0%} of the ideal is lost without a name", why=_losses_text(analysis))


VERDICT_BY_LOSS: dict[str, Callable[[ScalingAnalysis, LossTerm], Verdict]] = {
    SMALLER_BATCH: _batch_verdict,
    CONTENTION: _contention_verdict,
    DATA: _data_verdict,
    ALL_REDUCE: _allreduce_verdict,
    STRAGGLER: _straggler_verdict,
    DDP: _ddp_verdict,
    RESIDUAL: _unexplained_verdict,
}


def _neighbour_note(analysis: ScalingAnalysis) -> str:
    """A note if other users' processes took cores; they may be the contention. Else empty."""
    seen = any(check.code == "noisy-neighbour" for record in analysis.runs.all_records() for check in record.checks)
    return "; but other people's processes took cores meanwhile" if seen else ""


def _losses_text(analysis: ScalingAnalysis) -> str:
    """The losses in percent of the ideal, largest first."""
    lost = sorted((term for term in analysis.breakdown.terms if term.loss_fraction > 0.001), key=lambda term: -term.loss_fraction)
    return ", ".join(f"{term.name} {term.loss_fraction:.1%}" for term in lost) or "nothing is lost"


def _halve_gradients_command(analysis: ScalingAnalysis) -> str:
    """Command that compares full and half-size gradients; empty if they are half-size already."""
    config = analysis.final.config
    if config.comm_hook != "none" or config.precision not in ("torch-default", "fp32", "tf32", "amp-fp16", "amp-bf16"):
        return ""
    half = "bf16" if analysis.final.environment.device_type == "cpu" else "fp16"
    return analysis.run.command(comm_hook=("none", half))


def _hosts_text(hosts: list[str]) -> str:
    return f"{hosts[0]} and {hosts[1]}" if len(hosts) == 2 else f"{len(hosts)} nodes"


def _links_text(record: Record) -> str:
    return "what connects the GPUs of this node" if record.environment.device_type == "cuda" else "what connects the ranks of this node"
