"""The verdict: which bottleneck a run hit, and how often resampled rounds repeat it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import fsum
from typing import TypeVar

import msgspec

from ddpbench.analysis.bottleneck.loading import (
    data_bound,
    epoch_start_bound,
    host_to_device_bound,
    loader_contends_cpu,
    loader_contends_gpu,
    noisy_neighbour,
    trainer_bound,
)
from ddpbench.analysis.bottleneck.training import (
    compute_bound,
    hidden_sync,
    launch_bound,
    load_imbalance,
    straggler,
    sync_bound,
    too_few_cores,
    unexplained,
)
from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.compare import COMPARABLE_STATUSES
from ddpbench.analysis.controls import NO_CONTROLS, ControlRuns, step_time_ratio
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.remedies.recommend import is_rejected, recommend
from ddpbench.analysis.run_length import MIN_STEPS, is_too_short_for_verdict, timed_steps
from ddpbench.analysis.straggler import suspected_straggler
from ddpbench.analysis.summary import BOTTLENECK_FRACTION, Summary, compute_phases_ms
from ddpbench.record.bottleneck import DataWait, PhaseShares, RuleEvidence, TooShort, Undecided
from ddpbench.record.record import Record
from ddpbench.record.remedy import Remedy
from ddpbench.record.root_cause import UndecidedCause
from ddpbench.record.verdict import PROBABLE_FRACTION, RepeatedVerdict, Verdict

MAX_IDLE_FRACTION = 0.05
"""A round that waits, or is outside of the phases of training, for at most this fraction has no other bottleneck than computing."""

MAX_UNAVOIDABLE_FRACTION = 0.25
"""A longer wait for data, as a fraction of the step, is the bottleneck, also if no change of the loader is known to shorten it."""


def find_bottleneck(record: Record, summary: Summary, controls: ControlRuns = NO_CONTROLS) -> Verdict | None:
    """The bottleneck of ``record``, the evidence, and how often it repeats; None without rounds. The next step is not known yet.

    ``controls`` are the control runs. The verdict is inconclusive with too few rounds or steps,
    or if less than ``PROBABLE_FRACTION`` of the resamples name the same bottleneck. Variation of rounds alone does not make it so: if they
    vary by 5% and all of them show the same bottleneck, every resample does, too. Nor do few rounds that all do nothing but compute.
    """
    if summary.step_ms is None:
        return None
    inputs = AnalysisInput(record, summary, controls.with_intervals())
    unavoidable_ms = unavoidable_wait_ms(inputs)
    rules = BOTTLENECKS if unavoidable_ms is None else tuple(trainer_bound if rule is data_bound else rule for rule in BOTTLENECKS)
    found = first_bottleneck(inputs, rules)
    if found.kind == "compute-bound" and computes_in_every_round(inputs):
        found = msgspec.structs.replace(found, repeatability=1.0)
    elif is_too_short_for_verdict(record):
        evidence = TooShort(rounds=len(record.rounds), steps=timed_steps(record), likely_kind=found.kind, likely=_rule_evidence(found))
        found = Verdict(kind="inconclusive", evidence=evidence, rank=found.rank)
    elif found.kind != "inconclusive":
        resampled = resampled_verdicts(inputs, found, rules)
        found = with_repeatability(found, resampled, partial(_undecided, has_controls=inputs.controls.compute_only is not None))
        if found.kind != "inconclusive":
            found = with_cause_repeatability(found, resampled)
    if isinstance(found.evidence, PhaseShares):
        found = msgspec.structs.replace(found, evidence=msgspec.structs.replace(found.evidence, unavoidable_wait_ms=unavoidable_ms))
    return found


def unavoidable_wait_ms(inputs: AnalysisInput) -> float | None:
    """The wait for data per step, if it is short and no change of the loader saves as much as a bottleneck takes; None if one may.

    Only of trainers that load their batches themselves, at a known cost, or receive them from workers that are ahead. Such a run is bound
    by what takes the rest of its steps: a worker may cost the trainer as much as it takes over. Where workers set the pace, faster
    computing would only make it wait for them.
    """
    is_short = inputs.data_wait_ms < MAX_UNAVOIDABLE_FRACTION * inputs.step_ms
    if inputs.controls.diagnosis is None or not is_short or pipeline_model(inputs).cost is None:
        return None
    found = data_bound(inputs)
    if found is None or not isinstance(found.evidence, DataWait) or (inputs.record.workers and found.cause != "handoff"):
        return None
    remedies = recommend(CommandBuilder(inputs.record, "diagnose"), inputs, found)
    return None if any(_may_save_enough(remedy, inputs) for remedy in remedies) else inputs.data_wait_ms


def _may_save_enough(remedy: Remedy, inputs: AnalysisInput) -> bool:
    """Whether ``remedy`` may save ``BOTTLENECK_FRACTION`` of a step, by its trial, else by its prediction."""
    if is_rejected(remedy, inputs):
        return False
    gain = inputs.controls.tried_gains.get(remedy.scenario, remedy.gain) if remedy.scenario else remedy.gain
    return gain is None or gain >= 1 / (1 - BOTTLENECK_FRACTION)


def computes_in_every_round(inputs: AnalysisInput) -> bool:
    """Whether every round shows no more than a compute-bound training, whatever its throughput, and enough steps do.

    What is not computing is at most ``MAX_IDLE_FRACTION`` of each round, and no control run is significantly slower than the training on
    batches that are there already: then neither noise nor few rounds leave another bottleneck.
    """
    record, controls = inputs.record, inputs.controls
    if record.status not in COMPARABLE_STATUSES or timed_steps(record) < MIN_STEPS:
        return False
    if suspected_straggler(record, inputs.summary.ranks) is not None:
        return False
    device = controls.compute_only
    if record.kernel_activity or (device and device.kernel_activity):
        return False  # its only profile leaves open how far the launches are from being the limit
    pairs = ((controls.loader_in_background, device), (controls.replay, device), (device, controls.independent))
    if any(ratio is not None and ratio.is_above_one for ratio in (step_time_ratio(*pair) for pair in pairs)):
        return False
    return all(_only_computes(replace(each, controls=controls)) for each in inputs.each_round())


def _only_computes(inputs: AnalysisInput) -> bool:
    idle = 1 - fsum(compute_phases_ms(inputs.record, inputs.summary)) / inputs.step_ms
    return idle <= MAX_IDLE_FRACTION and first_bottleneck(inputs).kind == "compute-bound"


def resampled_verdicts(inputs: AnalysisInput, verdict: Verdict, rules: Sequence[BottleneckRule]) -> list[Verdict]:
    """The bottleneck of each resample by ``rules``, or of each single round if that is enough.

    Single rounds are enough if all agree with ``verdict`` and are all the evidence: control runs and the profiler window have their own
    uncertainty, and a single round does not show whether a rank is slow by chance.
    """
    by_rounds = inputs.controls.diagnosis is None and inputs.record.kernel_activity is None
    if by_rounds and suspected_straggler(inputs.record, inputs.summary.ranks) is None:
        per_round = [first_bottleneck(each, rules) for each in inputs.each_round()]
        if {(each.kind, each.cause) for each in per_round} == {(verdict.kind, verdict.cause)}:
            return per_round
    return [first_bottleneck(each, rules) for each in inputs.resampled()]


Repeated = TypeVar("Repeated", bound=RepeatedVerdict)

Competitor = tuple[Repeated, float]
"""A verdict and the fraction of resamples that agree with it."""


def with_repeatability(
    verdict: Repeated, resampled: Sequence[Repeated], undecided: Callable[[Competitor[Repeated], Competitor[Repeated]], Repeated]
) -> Repeated:
    """``verdict`` with the fraction of the ``resampled`` verdicts that agree with it.

    Below ``PROBABLE_FRACTION`` it becomes ``undecided`` between the two most frequent, the more frequent first.
    """
    others = [each for each in resampled if not _is_same_bottleneck(each, verdict)]
    kinds = Counter(each.kind for each in others)
    fraction = (len(resampled) - len(others)) / len(resampled)
    runner_up, count = kinds.most_common(1)[0] if kinds else (None, 0)
    if fraction < PROBABLE_FRACTION:
        other = next(each for each in others if each.kind == runner_up)
        first, second = sorted(((verdict, fraction), (other, count / len(resampled))), key=lambda each: -each[1])
        verdict = undecided(first, second)
    return msgspec.structs.replace(verdict, repeatability=fraction, runner_up=runner_up)


def _is_same_bottleneck(one: RepeatedVerdict, other: RepeatedVerdict) -> bool:
    """Whether both name one bottleneck and, of stragglers, possibly the same rank: a verdict on waiting may name none."""
    ranks = {one.rank, other.rank} - {None}
    return one.kind == other.kind and (one.kind != "straggler" or len(ranks) < 2)


def _undecided(first: Competitor[Verdict], second: Competitor[Verdict], *, has_controls: bool) -> Verdict:
    """With control runs (``has_controls``), only more rounds can decide."""
    (likely, fraction), (other, other_fraction) = first, second
    evidence = Undecided(
        first=likely.kind,
        first_fraction=fraction,
        second=other.kind,
        second_fraction=other_fraction,
        has_controls=has_controls,
        likely=_rule_evidence(likely),
    )
    return Verdict(kind="inconclusive", evidence=evidence, rank=likely.rank)


def _rule_evidence(verdict: Verdict) -> RuleEvidence:
    assert not isinstance(verdict.evidence, TooShort | Undecided), "no rule returns TooShort or Undecided"
    return verdict.evidence


def with_cause_repeatability(verdict: Verdict, resampled: Sequence[Verdict]) -> Verdict:
    """``verdict`` with the fraction of the ``resampled`` verdicts on its bottleneck that name its cause.

    A cause below ``PROBABLE_FRACTION`` is left open between the two most frequent. It is dropped if all of them agree on another.
    """
    same = [each for each in resampled if _is_same_bottleneck(each, verdict)]
    causes = Counter(each.cause for each in same)
    fraction = causes[verdict.cause] / len(same) if verdict.cause else None
    if fraction is not None and fraction < PROBABLE_FRACTION:
        if len(causes) == 1:
            return msgspec.structs.replace(verdict, cause=None, cause_evidence=None)
        (first, count), (second, second_count) = causes.most_common(2)
        undecided = UndecidedCause(first=first, first_fraction=count / len(same), second=second, second_fraction=second_count / len(same))
        return msgspec.structs.replace(verdict, cause=None, cause_evidence=undecided)
    others = (cause for cause, _ in causes.most_common() if cause not in (None, verdict.cause))
    return msgspec.structs.replace(verdict, cause_repeatability=fraction, cause_runner_up=next(others, None))


BottleneckRule = Callable[[AnalysisInput], Verdict | None]

BOTTLENECKS: tuple[BottleneckRule, ...] = (
    straggler,
    loader_contends_cpu,
    loader_contends_gpu,
    noisy_neighbour,
    epoch_start_bound,
    data_bound,
    host_to_device_bound,
    load_imbalance,
    too_few_cores,
    launch_bound,
    sync_bound,
    unexplained,
    hidden_sync,
    compute_bound,
)
"""The first that applies is the verdict; the last always applies."""


def first_bottleneck(inputs: AnalysisInput, rules: Sequence[BottleneckRule] = BOTTLENECKS) -> Verdict:
    return next(verdict for rule in rules if (verdict := rule(inputs)))
