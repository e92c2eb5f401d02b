"""What screened cures gain, and which are kept: beyond the noise that a switch shows that does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, sqrt

from ddpbench.analysis.stats import PairedRatio, ratio_of
from ddpbench.record.screening import CHANGES_NUMBERS, NULL, LossComparison, ScreenedCure, Screening

MIN_KEPT_GAIN = 1.03
"""A smaller gain is no reason to change a script."""


MAX_SPREADS, MAX_ROUNDING = 2.0, 0.01
"""How far losses of the same steps may be apart: in spreads of two runs of the script as it is, or as a fraction of the loss."""


def screened_gain(cure: ScreenedCure) -> PairedRatio | None:
    """Steps per second with ``cure`` as a multiple of those without, by the pairs of windows; None without a pair."""
    speeds_without, speeds_with = ([1 / step_s for step_s in steps_s] for steps_s in (cure.without_s, cure.with_s))
    pairs = min(len(speeds_without), len(speeds_with))
    return ratio_of(speeds_without[:pairs], speeds_with[:pairs]) if pairs else None


def noise_floor(cures: Sequence[ScreenedCure]) -> float:
    """The upper end of what the null cure seems to gain; infinite if that was not measured."""
    gains = (screened_gain(each) for each in cures if each.code == NULL)
    return max((gain.high if gain and gain.has_interval else inf for gain in gains), default=inf)


def is_kept(cure: ScreenedCure, floor: float) -> bool:
    """Whether ``cure`` gains more than the noise, and enough to matter."""
    gain = screened_gain(cure)
    return gain is not None and not (cure.failure or cure.obstacle) and gain.is_above_one and gain.center > max(MIN_KEPT_GAIN, floor)


def kept_cures(screening: Screening) -> list[ScreenedCure]:
    """The trials whose cures are kept: each on top of those before it."""
    floor = noise_floor(screening.cures)
    return [each for each in screening.cures if each.code != NULL and is_kept(each, floor)]


def advised_cures(screening: Screening) -> list[ScreenedCure]:
    """Those of them that only round differently, or all of them if other numbers are allowed; none if they change the losses."""
    if screening.loss_comparison and not is_within_rounding(screening.loss_comparison):
        return []
    kept = kept_cures(screening)
    return kept if screening.allows_numerics else rounding_cures(kept)


def rounding_cures(kept: Sequence[ScreenedCure]) -> list[ScreenedCure]:
    """Those of the cures that only round differently, also by what they were tried on top of."""
    return [each for each in kept if not {each.code, *each.on_top_of} & {*CHANGES_NUMBERS}]


def loss_deviations(losses: LossComparison) -> tuple[float, float] | None:
    """Maximum deviation of the losses with cures from the nearer of the two plain runs, and of these from each other.

    As fractions of their mean, or of the first loss of the training: repeated batches are soon memorized, and losses nearly 0.
    None if losses are missing, or those of the script as it is are not finite. Infinite if only those with cures are not.
    """
    first, second = ([each for each in run if each is not None] for run in losses.plain)
    scale = max(abs(losses.first or 0.0), sum(map(abs, (*first, *second))) / max(1, len(first) + len(second)))
    if not scale or {len(first), len(second), *map(len, losses.plain)} != {len(losses.changed)}:
        return None
    changed = [inf if each is None else each for each in losses.changed]
    nearest = max(min(abs(each - a), abs(each - b)) for a, b, each in zip(first, second, changed, strict=True))
    return nearest / scale, max(abs(a - b) for a, b in zip(first, second, strict=True)) / scale


def is_within_rounding(losses: LossComparison) -> bool:
    """Whether cures change the losses no more than the spread of two runs without, which is none on a CPU. Unknown counts as such."""
    found = loss_deviations(losses)
    return found is None or found[0] <= max(MAX_SPREADS * found[1], MAX_ROUNDING)


def together(cures: Sequence[ScreenedCure]) -> PairedRatio | None:
    """The gain of all ``cures``, each on top of those before it: the product of theirs."""
    gains = [gain for each in cures if (gain := screened_gain(each))]
    return _product(gains) if gains else None


def is_too_noisy(screening: Screening) -> bool:
    """Whether a cure may gain something worthwhile that the noise hides."""
    floor = noise_floor(screening.cures)
    others = (screened_gain(each) for each in screening.cures if each.code != NULL and not is_kept(each, floor))
    return any(gain is not None and gain.high > MIN_KEPT_GAIN and gain.center > 1 / floor for gain in others)


def _product(gains: Sequence[PairedRatio]) -> PairedRatio:
    center = sum(log(each.center) for each in gains)
    below = sqrt(sum(log(each.low / each.center) ** 2 for each in gains))
    above = sqrt(sum(log(each.high / each.center) ** 2 for each in gains))
    return PairedRatio(exp(center), exp(center - below), exp(center + above), min(each.pairs for each in gains))
