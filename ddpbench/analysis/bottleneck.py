"""Which limit a run hit, and how often the same limit is named when its rounds are resampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from ddpbench.analysis.case import Case
from ddpbench.analysis.command import Rerun
from ddpbench.analysis.cures import next_step
from ddpbench.analysis.evidence import steps, too_few_for_a_verdict
from ddpbench.analysis.experiments import NONE, Experiments
from ddpbench.analysis.limits import first_limit
from ddpbench.analysis.limits.training import looks_like
from ddpbench.analysis.straggler import suspect
from ddpbench.analysis.summary import Summary
from ddpbench.record.record import Record
from ddpbench.record.verdict import PROBABLE, Verdict
from ddpbench.record.words import count

DECIDES = {
    "straggler": "more rounds",
    "loader-steals-cpu": "training while the loader runs and its batches are dropped",
    "loader-steals-gpu": "training while the loader runs and its batches are dropped",
    "noisy-neighbour": "the same run with no other process on these cores",
    "data-bound": "training on batches that are already on the device",
    "host-to-device-bound": "training on batches in pinned host memory",
    "launch-bound": "a profiler window",
    "sync-bound": "training without gradient sync",
}
"""The measurement that tells a limit from any other; compute-bound is what is left if none of them holds."""


def verdict(record: Record, summary: Summary, typed: Sequence[str] = (), around: Experiments = NONE) -> Verdict | None:
    """The limit that ``record`` hit, why, how often it repeats, and a command to try next, in the words of ``typed``.

    None without rounds. ``around`` holds the control runs. Too few rounds or steps, and two limits of which no one is named by
    ``PROBABLE`` of the resamples, make it inconclusive. How much the rounds vary is no reason by itself: if they vary by 5% and all of
    them show the same limit, every resample does, too.
    """
    if summary.step_ms is None:
        return None
    case = Case(record, summary, around.with_intervals())
    found = first_limit(case)
    if too_few_for_a_verdict(record):
        few = f"{count(len(record.rounds), 'round')} and {count(steps(record), 'step')} are too few for a verdict"
        found = Verdict(kind="inconclusive", says=few, why=looks_like(found), rank=found.rank)
    elif found.kind != "inconclusive":
        found = repeated(found, resampled_limits(case, found), has_controls=case.around.device is not None)
    return msgspec.structs.replace(found, next=next_step(Rerun(record, typed), Case(record, summary, around), found))


def resampled_limits(case: Case, found: Verdict) -> list[Verdict]:
    """The limit of each resample; of each single round instead if all of these agree with ``found``.

    Whether a rank is slow by chance, no single round shows.
    """
    if suspect(case.record, case.summary.ranks) is None:
        alone = [first_limit(each) for each in case.each_round()]
        if {(each.kind, each.cause) for each in alone} == {(found.kind, found.cause)}:
            return alone
    return [first_limit(each) for each in case.resampled()]


def repeated(found: Verdict, resampled: Sequence[Verdict], *, has_controls: bool) -> Verdict:
    """``found`` with the shares of the ``resampled`` verdicts that name its limit and its cause.

    A limit below ``PROBABLE`` becomes inconclusive; a cause below it is left open, and ``why`` names the two that compete. If the control
    runs are there (``has_controls``), only more rounds of them can decide.
    """
    same = [each for each in resampled if _is_same_limit(each, found)]
    limits: Counter[str] = Counter(each.kind for each in resampled if not _is_same_limit(each, found) and each.kind != "inconclusive")
    share = len(same) / len(resampled)
    runner_up = limits.most_common(1)[0][0] if limits else ""
    if share < PROBABLE:
        kinds = [] if has_controls else [found.kind, runner_up]
        decides = list(dict.fromkeys(DECIDES[kind] for kind in kinds if kind in DECIDES)) or ["more rounds"]
        return _undecided(found, share, runner_up, limits[runner_up] / len(resampled), " or ".join(decides))
    causes = Counter(each.cause for each in same)
    cause_share = causes[found.cause] / len(same) if found.cause else None
    others = [cause for cause, _ in causes.most_common() if cause not in ("", found.cause)]
    open_cause = cause_share is not None and cause_share < PROBABLE
    return msgspec.structs.replace(
        found,
        repeatability=share,
        cause="" if open_cause else found.cause,
        cause_repeatability=None if open_cause else cause_share,
        runner_up=runner_up or (others[0] if others and not open_cause else ""),
        why=f"{found.why}; {_open_cause(causes, len(same))}" if open_cause else found.why,
    )


def _is_same_limit(one: Verdict, other: Verdict) -> bool:
    """Of two stragglers, whether they may be the same rank: a verdict on waiting may name none."""
    ranks = {one.rank, other.rank} - {None}
    return one.kind == other.kind and (one.kind != "straggler" or len(ranks) < 2)


def _undecided(found: Verdict, share: float, runner_up: str, other_share: float, decides: str) -> Verdict:
    first, second = (found.kind, share), (runner_up, other_share)
    return Verdict(
        kind="inconclusive",
        says=" or ".join(f"{kind} ({of:.0%} of resamples)" for kind, of in sorted((first, second), key=lambda each: -each[1]) if kind),
        why=f"{looks_like(found)}; {decides} would decide",
        repeatability=share,
        runner_up=runner_up,
        rank=found.rank,
    )


def _open_cause(causes: Counter[str], resamples: int) -> str:
    shares = [f"{cause.replace('-', ' ') or 'unknown'} in {number / resamples:.0%}" for cause, number in causes.most_common(2)]
    return f"the cause is open: {', '.join(shares)} of resamples"
