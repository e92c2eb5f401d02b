"""Verdict of a scaling job: the largest loss, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from ddpbench.analysis.bottleneck.verdict import Competitor, with_repeatability
from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.resampling import resamples, single_rounds
from ddpbench.analysis.run_length import MIN_ROUNDS_AND_STEPS_FOR_VERDICT
from ddpbench.analysis.scaling.allreduce import AllReduceStats, allreduce_stats
from ddpbench.analysis.scaling.ladder import ScalingPoint, compute_scaling_points
from ddpbench.analysis.scaling.runs import ScalingRuns, scaling_runs
from ddpbench.analysis.scaling.waterfall import LossTerm, Waterfall, waterfall
from ddpbench.analysis.summary import summarize
from ddpbench.record.checks import ImplausibleEfficiency
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import ddp_role
from ddpbench.record.scaling import Scaling
from ddpbench.record.scaling_loss import (
    Contention,
    DdpLoss,
    InputLoss,
    Losses,
    LossName,
    NearIdeal,
    NotMeasured,
    SlowAllReduce,
    SmallBatch,
    StragglerLoss,
    TooFewRounds,
    UndecidedLoss,
    UnexplainedLoss,
    UnreliableBaseline,
)
from ddpbench.record.verdict import RaiseTimeLimit, RunCommand, ScalingVerdict

MAX_LOSS_WHEN_SCALING = 0.03
"""Training scales if it loses less than this fraction of the ideal."""

MIN_LISTED_LOSS_FRACTION = 0.001
"""Smaller losses are not listed; a fraction of the ideal."""


@dataclass(frozen=True)
class ScalingAnalysis:
    """Inputs of a scaling verdict."""

    runs: ScalingRuns
    breakdown: Waterfall
    points: list[ScalingPoint]
    allreduce: AllReduceStats | None

    @property
    def final(self) -> Record:
        assert self.runs.final is not None, "a waterfall has a final run"
        return self.runs.final

    @property
    def run(self) -> CommandBuilder:
        """Command builder of the final run; with strong scaling, its batch is one rank's share."""
        return CommandBuilder(self.final, "scale")


def analyze_scaling(job: Job, runs: ScalingRuns) -> ScalingAnalysis | None:
    """Return the analysis of a scaling job.

    None without a waterfall from one rank to the final run, which needs the throughput of both.
    """
    breakdown = waterfall(runs)
    if breakdown is None:
        return None
    return ScalingAnalysis(runs, breakdown, compute_scaling_points(runs, breakdown), allreduce_stats(runs))


def scaling_verdict(analysis: ScalingAnalysis) -> ScalingVerdict:
    """Return the verdict from the means of the rounds."""
    breakdown, worst, top = analysis.breakdown, analysis.breakdown.largest[0], analysis.points[-1]
    if top.baseline_doubts:
        return _unreliable_baseline(top)
    if breakdown.loss_fraction < MAX_LOSS_WHEN_SCALING:
        return ScalingVerdict(kind="scales", evidence=NearIdeal(loss_fraction=breakdown.loss_fraction, losses=_losses(analysis)))
    return VERDICT_BY_LOSS[worst.name](analysis, worst)


def judge_scaling(job: Job, runs: ScalingRuns) -> None:
    """Set the verdict of ``job``, and add a check to each implausibly efficient scaling point."""
    found = analyze_scaling(job, runs)
    runs.scaling.verdict = _with_repeatability(found, job) if found else _out_of_time(runs.scaling)
    for point in found.points if found else compute_scaling_points(runs, None):
        record = runs.ddp_by_ranks[point.ranks]
        if point.baseline_doubts and point.efficiency:
            record.checks.append(ImplausibleEfficiency(efficiency=point.efficiency.center, baseline_doubts=point.baseline_doubts))


def _with_repeatability(analysis: ScalingAnalysis, job: Job) -> ScalingVerdict:
    """Return the verdict with the share of resamples that agree with it.

    Inconclusive if there are too few rounds.
    """
    verdict, (min_rounds, _) = scaling_verdict(analysis), MIN_ROUNDS_AND_STEPS_FOR_VERDICT
    num_rounds = min(len(record.rounds) for record in analysis.runs.all_records() if record is not analysis.runs.allreduce_only)
    if num_rounds < min_rounds and verdict.kind != "unreliable-baseline":
        return ScalingVerdict(kind="inconclusive", evidence=TooFewRounds(rounds=num_rounds, losses=_losses(analysis)))
    resampled = _verdicts(single_rounds(job.records), job)
    if {each.kind for each in resampled} != {verdict.kind}:
        resampled = _verdicts(resamples(job.records), job)
    return with_repeatability(verdict, resampled, _undecided)


def _undecided(first: Competitor[ScalingVerdict], second: Competitor[ScalingVerdict]) -> ScalingVerdict:
    (likely, fraction), (other, other_fraction) = first, second
    assert not isinstance(likely.evidence, TooFewRounds | NotMeasured | UndecidedLoss), "a verdict from a waterfall has none of these"
    evidence = UndecidedLoss(
        first=likely.kind, first_fraction=fraction, second=other.kind, second_fraction=other_fraction, likely=likely.evidence
    )
    return ScalingVerdict(kind="inconclusive", evidence=evidence, rank=likely.rank)


def _verdicts(resampled: Iterable[Sequence[Record | None]], job: Job) -> list[ScalingVerdict]:
    """Return one verdict per resample from which a waterfall can be computed."""
    found = []
    for records in resampled:
        resampled_job = msgspec.structs.replace(job, records=[_with_own_estimate(record) for record in records if record])
        runs = scaling_runs(resampled_job)
        analysis = analyze_scaling(resampled_job, runs) if runs else None
        found += [scaling_verdict(analysis)] if analysis else []
    return found


def _with_own_estimate(record: Record) -> Record:
    """Return the resampled record with the median throughput of its resampled rounds."""
    if record.throughput is None or not record.rounds:
        return record
    samples_per_s = median(timed.samples_per_s for timed in record.rounds)
    return msgspec.structs.replace(record, throughput=msgspec.structs.replace(record.throughput, samples_per_s=samples_per_s))


def _out_of_time(scaling: Scaling) -> ScalingVerdict | None:
    """Return "inconclusive" if time ran out before a scaling point had a round.

    None if the cause is another, which the page reports.
    """
    skipped = {each.what for each in scaling.skipped}
    missing = [ranks for ranks in scaling.world_sizes if ddp_role(ranks) in skipped]
    if not missing:
        return None
    return ScalingVerdict(kind="inconclusive", evidence=NotMeasured(world_sizes=missing), next=RaiseTimeLimit())


def _unreliable_baseline(point: ScalingPoint) -> ScalingVerdict:
    assert point.efficiency is not None, "only a point with an efficiency has doubts"
    evidence = UnreliableBaseline(ranks=point.ranks, efficiency=point.efficiency.center, doubts=point.baseline_doubts)
    return ScalingVerdict(kind="unreliable-baseline", evidence=evidence)


def _allreduce_verdict(analysis: ScalingAnalysis, term: LossTerm) -> ScalingVerdict:
    stats = analysis.allreduce
    evidence = SlowAllReduce(loss_fraction=term.loss_fraction, losses=_losses(analysis))
    if stats is not None and stats.allreduce_only_ms is not None:
        evidence = msgspec.structs.replace(
            evidence,
            num_buckets=len(stats.bucket_bytes),
            total_bytes=stats.total_bytes,
            allreduce_only_ms=stats.allreduce_only_ms,
            busbw=stats.busbw,
            max_busbw=stats.max_busbw,
            hidden_fraction=stats.hidden_fraction,
        )
    hosts = {place.host for place in analysis.final.environment.placements}
    return ScalingVerdict(kind="network-bound" if len(hosts) > 1 else "link-bound", evidence=evidence, next=_halve_gradients(analysis))


def _contention_verdict(analysis: ScalingAnalysis, term: LossTerm) -> ScalingVerdict:
    has_noisy_neighbour = any(check.code == "noisy-neighbour" for record in analysis.runs.all_records() for check in record.checks)
    evidence = Contention(loss_fraction=term.loss_fraction, lost_ms=term.ms_per_step, has_noisy_neighbour=has_noisy_neighbour)
    return ScalingVerdict(kind="contention-bound", evidence=evidence)


def _data_verdict(analysis: ScalingAnalysis, term: LossTerm) -> ScalingVerdict:
    evidence = InputLoss(loss_fraction=term.loss_fraction, lost_ms=term.ms_per_step)
    return ScalingVerdict(kind="data-bound", evidence=evidence, next=RunCommand(analysis.run.diagnose_command()))


def _straggler_verdict(analysis: ScalingAnalysis, term: LossTerm) -> ScalingVerdict:
    slow = summarize(analysis.final).straggler
    evidence = StragglerLoss(
        loss_fraction=term.loss_fraction,
        lost_ms=term.ms_per_step,
        rank=slow.rank if slow else None,
        slow_in=slow.slow_in if slow else None,
        excess_fraction=slow.excess_fraction if slow else None,
    )
    return ScalingVerdict(kind="straggler", evidence=evidence, rank=evidence.rank)


def _ddp_verdict(analysis: ScalingAnalysis, term: LossTerm) -> ScalingVerdict:
    cost_ms = analysis.allreduce.comm_cost_by_arms_ms if analysis.allreduce else None
    known = cost_ms if cost_ms is not None and cost_ms > 0 else None
    evidence = DdpLoss(loss_fraction=term.loss_fraction, lost_ms=term.ms_per_step, comm_cost_ms=known)
    return ScalingVerdict(kind="ddp-bound", evidence=evidence, next=_halve_gradients(analysis))


def _batch_verdict(analysis: ScalingAnalysis, term: LossTerm) -> ScalingVerdict:
    return ScalingVerdict(kind="batch-bound", evidence=SmallBatch(loss_fraction=term.loss_fraction, lost_ms=term.ms_per_step))


def _unexplained_verdict(analysis: ScalingAnalysis, term: LossTerm) -> ScalingVerdict:
    evidence = UnexplainedLoss(loss_fraction=term.loss_fraction, losses=_losses(analysis))
    return ScalingVerdict(kind="unexplained", evidence=evidence)


VERDICT_BY_LOSS: dict[LossName, Callable[[ScalingAnalysis, LossTerm], ScalingVerdict]] = {
    "smaller-batch": _batch_verdict,
    "contention": _contention_verdict,
    "data": _data_verdict,
    "exposed-comm": _allreduce_verdict,
    "straggler": _straggler_verdict,
    "ddp": _ddp_verdict,
    "residual": _unexplained_verdict,
}
"""Every loss of a waterfall."""


def _losses(analysis: ScalingAnalysis) -> Losses:
    lost = [term for term in analysis.breakdown.terms if term.loss_fraction > MIN_LISTED_LOSS_FRACTION]
    return {term.name: term.loss_fraction for term in sorted(lost, key=lambda term: -term.loss_fraction)}


def _halve_gradients(analysis: ScalingAnalysis) -> RunCommand | None:
    """Command that compares full and half-size gradients; None if they are half-size already."""
    config = analysis.final.config
    if config.comm_hook != "none" or config.precision not in ("torch-default", "fp32", "tf32", "amp-fp16", "amp-bf16"):
        return None
    half = "bf16" if analysis.final.environment.device_type == "cpu" else "fp16"
    return RunCommand(analysis.run.command(comm_hook=("none", half)))
