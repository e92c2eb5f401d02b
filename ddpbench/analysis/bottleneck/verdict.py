"""The verdict: which bottleneck a run hit, and how often resampled rounds repeat it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from ddpbench.analysis.bottleneck.loading import (
    data_bound,
    format_rates,
    host_to_device_bound,
    loader_steals_cpu,
    loader_steals_gpu,
    noisy_neighbour,
)
from ddpbench.analysis.bottleneck.training import (
    compute_bound,
    describe_likely,
    launch_bound,
    straggler,
    sync_bound,
    too_few_cores,
    unexplained,
)
from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.controls import NO_CONTROLS, ControlRuns
from ddpbench.analysis.evidence import is_too_short_for_verdict, timed_steps
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.training import next_command
from ddpbench.analysis.straggler import suspected_straggler
from ddpbench.analysis.summary import Summary
from ddpbench.record.record import Record
from ddpbench.record.text import pluralize
from ddpbench.record.verdict import PROBABLE_FRACTION, Verdict

DECIDING_MEASUREMENT = {
    "straggler": "the control runs of a diagnosis",
    "loader-steals-cpu": "training while the loader runs and its batches are dropped",
    "loader-steals-gpu": "training while the loader runs and its batches are dropped",
    "noisy-neighbour": "the same run with no other process on these cores",
    "data-bound": "training on batches that are already on the device",
    "host-to-device-bound": "training on batches in pinned host memory",
    "launch-bound": "a profiler window",
    "sync-bound": "training without gradient sync",
}
"""The measurement that decides on a bottleneck; compute-bound is what remains if none of them applies."""


def find_bottleneck(record: Record, summary: Summary, swept: Sequence[str] = (), controls: ControlRuns = NO_CONTROLS) -> Verdict | None:
    """The bottleneck of ``record``, the reason, how often it repeats, and a command to try next; None without rounds.

    ``swept`` are the fields that its job compares, ``controls`` the control runs. The verdict is inconclusive with too few rounds or steps,
    or if less than ``PROBABLE_FRACTION`` of the resamples name the same bottleneck. Variation of rounds alone does not make it so: if they
    vary by 5% and all of them show the same bottleneck, every resample does, too.
    """
    if summary.step_ms is None:
        return None
    case = AnalysisInput(record, summary, controls.with_intervals())
    found = first_bottleneck(case)
    if is_too_short_for_verdict(record):
        few = f"{pluralize(len(record.rounds), 'round')} and {pluralize(timed_steps(record), 'step')} are too few for a verdict"
        found = Verdict(kind="inconclusive", says=few, why=describe_likely(found), rank=found.rank)
    elif found.kind != "inconclusive":
        resampled = resampled_verdicts(case, found)
        found = with_repeatability(found, resampled, has_controls=case.controls.compute_only is not None, without_cause=format_rates(case))
    run = CommandBuilder(record, "diagnose" if controls.diagnosis else "run", swept)
    return msgspec.structs.replace(found, next=next_command(run, AnalysisInput(record, summary, controls), found))


def resampled_verdicts(inputs: AnalysisInput, verdict: Verdict) -> list[Verdict]:
    """The bottleneck of each resample, or of each single round if that is enough.

    Single rounds are enough if all agree with ``verdict`` and are all the evidence: control runs and the profiler window have their own
    uncertainty, and a single round does not show whether a rank is slow by chance.
    """
    by_rounds = inputs.controls.diagnosis is None and inputs.record.kernel_activity is None
    if by_rounds and suspected_straggler(inputs.record, inputs.summary.ranks) is None:
        alone = [first_bottleneck(each) for each in inputs.each_round()]
        if {(each.kind, each.cause) for each in alone} == {(verdict.kind, verdict.cause)}:
            return alone
    return [first_bottleneck(each) for each in inputs.resampled()]


def with_repeatability(verdict: Verdict, resampled: Sequence[Verdict], *, has_controls: bool, without_cause: str = "") -> Verdict:
    """``verdict`` with the fractions of the ``resampled`` verdicts that name its bottleneck and its cause.

    A bottleneck below ``PROBABLE_FRACTION`` becomes inconclusive. A cause below it is left open: ``why`` is then ``without_cause`` and the
    two causes that compete. With control runs (``has_controls``), only more rounds can decide.
    """
    same = [each for each in resampled if _is_same_bottleneck(each, verdict)]
    others = [each for each in resampled if not _is_same_bottleneck(each, verdict)]
    limits = Counter(_bottleneck_name(each) for each in others)
    share = len(same) / len(resampled)
    runner_up, times = limits.most_common(1)[0] if limits else ("", 0)
    if share < PROBABLE_FRACTION:
        other = next(each for each in others if _bottleneck_name(each) == runner_up)
        ranked = sorted(((verdict, share), (other, times / len(resampled))), key=lambda each: -each[1])
        return _undecided(ranked, runner_up, has_controls)
    causes = Counter(each.cause for each in same)
    cause_share = causes[verdict.cause] / len(same) if verdict.cause else None
    is_open = cause_share is not None and cause_share < PROBABLE_FRACTION
    return msgspec.structs.replace(
        verdict,
        repeatability=share,
        cause="" if is_open else verdict.cause,
        cause_repeatability=None if is_open else cause_share,
        runner_up=runner_up,
        cause_runner_up="" if is_open else next((cause for cause, _ in causes.most_common() if cause not in ("", verdict.cause)), ""),
        why=f"{without_cause}; {_undecided_cause(causes, len(same))}" if is_open else verdict.why,
    )


def _bottleneck_name(verdict: Verdict) -> str:
    return "none of them" if verdict.kind == "inconclusive" else verdict.kind


def _is_same_bottleneck(one: Verdict, other: Verdict) -> bool:
    """Whether both name one bottleneck and, of stragglers, possibly the same rank: a verdict on waiting may name none."""
    ranks = {one.rank, other.rank} - {None}
    return one.kind == other.kind and (one.kind != "straggler" or len(ranks) < 2)


def _undecided(ranked: Sequence[tuple[Verdict, float]], runner_up: str, has_controls: bool) -> Verdict:
    """The two bottlenecks that compete, each with its fraction of resamples, the more frequent one first."""
    (first, share), _ = ranked
    kinds = [] if has_controls else [found.kind for found, _ in ranked]
    decides = list(dict.fromkeys(DECIDING_MEASUREMENT[kind] for kind in kinds if kind in DECIDING_MEASUREMENT)) or ["more rounds"]
    return Verdict(
        kind="inconclusive",
        says=" or ".join(f"{_bottleneck_name(found)} ({of:.0%} of resamples)" for found, of in ranked),
        why=f"{describe_likely(first)}; {' or '.join(decides)} would decide",
        repeatability=share,
        runner_up=runner_up,
        rank=first.rank,
    )


def _undecided_cause(causes: Counter[str], resamples: int) -> str:
    shares = [f"{cause.replace('-', ' ') or 'unknown'} in {number / resamples:.0%}" for cause, number in causes.most_common(2)]
    return f"the cause is open: {', '.join(shares)} of resamples"


BottleneckRule = Callable[[AnalysisInput], Verdict | None]

BOTTLENECKS: tuple[BottleneckRule, ...] = (
    straggler,
    loader_steals_cpu,
    loader_steals_gpu,
    noisy_neighbour,
    data_bound,
    host_to_device_bound,
    too_few_cores,
    launch_bound,
    sync_bound,
    unexplained,
    compute_bound,
)
"""The first that applies is the verdict; the last always applies."""


def first_bottleneck(inputs: AnalysisInput) -> Verdict:
    return next(held for limit in BOTTLENECKS if (held := limit(inputs)))
