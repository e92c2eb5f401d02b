"""Whether launches of a script with a change of its code prove that it trains faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, variance

from msgspec.structs import replace

from ddpbench.analysis.stats import t_quantile
from ddpbench.record.proof import Proof, ProofProblem, SideLaunch
from ddpbench.record.remedy import MeasuredGain

MIN_HALF_WIDTH = 0.015
"""Two launches differ by up to so much for no reason that repeats: an interval is never narrower."""

SAME_BATCH = 1e-3
"""Relative difference of the samples per step that a last, smaller batch may make."""


MIN_EXTRA_S = 1.0
"""Seconds that a first step takes longer before anyone waits for them."""


def judged(proof: Proof) -> Proof:
    """``proof`` with its gain, what speaks against it, and what it shows; unchanged without two launches of each side."""
    plain, changed = ([each for each in proof.launches if each.is_changed == side] for side in (False, True))
    if min(len(plain), len(changed)) < 2:
        return proof
    gain, problems = launch_gain(plain, changed), [*_problems(plain, changed)]
    is_faster, is_slower = gain.low > 1, gain.high < 1
    code = "refuted" if problems else "proved" if is_faster else "slower" if is_slower else "cannot-tell"
    return replace(proof, gain=gain, problems=problems, code=code)


def launch_gain(plain: Sequence[SideLaunch], changed: Sequence[SideLaunch]) -> MeasuredGain:
    """Samples/s with the change as a multiple of those without, with a 95% t-interval from the spread of the launches.

    It is taken on logs, with one variance for both sides. Needs two launches of each.
    """
    logs = [[log(each.samples_per_s) for each in side] for side in (plain, changed)]
    degrees = sum(len(side) - 1 for side in logs)
    pooled = sum((len(side) - 1) * variance(side) for side in logs) / degrees
    half = t_quantile(0.975, degrees) * sqrt(pooled * sum(1 / len(side) for side in logs))
    center = fmean(logs[1]) - fmean(logs[0])
    low, high = center - max(half, -log(1 - MIN_HALF_WIDTH)), center + max(half, log(1 + MIN_HALF_WIDTH))
    return MeasuredGain(center=exp(center), low=exp(low), high=exp(high), pairs=min(map(len, logs)), has_interval=True)


@dataclass(frozen=True)
class FirstStep:
    """The seconds by which the first step takes longer with the change, and those of training after which that has paid off."""

    extra_s: float
    payback_s: float


def longer_first_step(proof: Proof) -> FirstStep | None:
    """None if it does not take noticeably longer, or if nothing is gained."""
    plain, changed = ([each.first_step_s for each in proof.launches if each.is_changed == side] for side in (False, True))
    if proof.code != "proved" or proof.gain is None or None in (*plain, *changed):
        return None
    extra_s = min(each or 0.0 for each in changed) - max(each or 0.0 for each in plain)
    return FirstStep(extra_s, extra_s / (1 - 1 / proof.gain.center)) if extra_s >= MIN_EXTRA_S else None


def _problems(plain: Sequence[SideLaunch], changed: Sequence[SideLaunch]) -> Iterator[ProofProblem]:
    if not all(each.has_finite_loss for each in changed):
        yield "loss-not-finite"
    if min(each.updates for each in changed) < min(each.updates for each in plain) - 1:  # one may be on its way at the end
        yield "skipped-updates"
    before, after = (fmean(each.samples_per_step for each in side) for side in (plain, changed))
    if abs(after / before - 1) > SAME_BATCH:
        yield "other-batches"
