"""Means, intervals and paired ratios, without scipy, whose import is slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import cosh, exp, fsum, lgamma, log, pi, pow, sinh, sqrt
from statistics import NormalDist, fmean, stdev

MIN_VALUES_FOR_INTERVAL = 3
"""Values needed for a t-interval: that of two values is too wide to be useful, and their range is given instead."""

SIMPSON_SLICES = 200
"""Slices of Simpson's rule: six digits or more, far more than an interval is printed with."""

NORMAL_FROM_DF = 1e5
"""From this many degrees of freedom on, t differs from the normal distribution in the fifth digit."""


@dataclass(frozen=True)
class Interval:
    """A figure and its confidence interval, all in the unit of the values."""

    center: float
    low: float
    high: float

    def recentered(self, center: float) -> Interval:
        """The same interval about ``center``, such as the median of the same values, widened to contain it."""
        return Interval(center, min(self.low, center), max(self.high, center))


@cache  # many intervals have the same number of values
def t_quantile(probability: float, df: float) -> float:
    """The ``probability`` quantile of Student's t with ``df`` degrees of freedom.

    ``df`` is 1 or more; above ``NORMAL_FROM_DF`` the normal distribution is used. Raises ValueError if either is out of range.

    With t = sqrt(df) sinh(u) the density becomes cosh(u)**-df, smooth for any df. Its area comes from Simpson's rule, and Newton's steps
    climb to u from below, since the area is concave in it.
    """
    if not (0 < probability < 1 and df >= 1):
        raise ValueError(f"no t quantile for probability {probability} and {df} degrees of freedom")
    if df > NORMAL_FROM_DF:
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:
        return -t_quantile(1 - probability, df)

    def density(u: float) -> float:
        return pow(cosh(u), -df)

    area = (probability - 0.5) * sqrt(pi) * exp(lgamma(df / 2) - lgamma((df + 1) / 2))
    u, step = 0.0, area
    while step > 1e-12 * u:
        u += step
        step = (area - _simpson(density, u)) / density(u)
    return sqrt(df) * sinh(u)


def log_t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The geometric mean of positive ``values`` with its t-interval, taken on their logs. Needs two values or more."""
    return _exp_interval(t_interval([log(value) for value in values], confidence))


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean of ``values`` with its t-interval. Needs two values or more."""
    return _trimmed_ci(values, 0, confidence)


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest fifth of ``values``: one disturbed round in five hardly changes it."""
    ordered, cut = sorted(values), _trim_count(values)
    return fmean(ordered[cut : len(ordered) - cut])


def trimmed_ci(values: Sequence[float]) -> Interval:
    """``trimmed_mean`` with its 95% interval (Tukey and McLaughlin 1963; Yuen 1974); ``t_interval`` for fewer than five values."""
    return _trimmed_ci(values, _trim_count(values), 0.95)


def log_trimmed_ci(values: Sequence[float]) -> Interval:
    """``trimmed_ci`` of positive ``values``, taken on their logs."""
    return _exp_interval(trimmed_ci([log(value) for value in values]))


def _trim_count(values: Sequence[float]) -> int:
    return len(values) // 5


def _trimmed_ci(values: Sequence[float], cut: int, confidence: float) -> Interval:
    """The mean without ``cut`` values at each end, with an interval from the spread of the winsorized values."""
    ordered = sorted(values)
    kept = ordered[cut : len(ordered) - cut]
    center, num_kept = fmean(kept), len(kept)
    standard_error = stdev([kept[0]] * cut + kept + [kept[-1]] * cut) * sqrt((len(ordered) - 1) / (num_kept * (num_kept - 1)))
    half_width = t_quantile((1 + confidence) / 2, num_kept - 1) * standard_error
    return Interval(center, center - half_width, center + half_width)


def _exp_interval(interval: Interval) -> Interval:
    return Interval(exp(interval.center), exp(interval.low), exp(interval.high))


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Sample standard deviation over mean, a fraction. Needs two values or more."""
    return stdev(values) / fmean(values)


def _simpson(function: Callable[[float], float], end: float) -> float:
    """The integral of ``function`` from 0 to ``end``."""
    width = end / SIMPSON_SLICES
    inner = fsum((4 if place % 2 else 2) * function(place * width) for place in range(1, SIMPSON_SLICES))
    return width / 3 * (function(0.0) + inner + function(end))


@dataclass(frozen=True)
class PairedRatio(Interval):
    """Geometric mean of paired ratios with a 95% t-interval on their logs; with too few ``pairs``, their range.

    Noise that a pair shares, such as that of a launch in two rounds of one process, cancels.
    """

    pairs: int

    @property
    def has_interval(self) -> bool:
        return self.pairs >= MIN_VALUES_FOR_INTERVAL

    @property
    def is_above_one(self) -> bool:
        """Whether it has an interval that lies above 1."""
        return self.has_interval and self.low > 1


def ratio_of(
    base: Sequence[float], other: Sequence[float], interval: Callable[[Sequence[float]], Interval] = log_t_interval
) -> PairedRatio:
    """``other`` as a multiple of the paired ``base``. ``interval`` gives the interval of the ratios. Needs one pair or more."""
    ratios = [after / before for before, after in zip(base, other, strict=True)]
    if len(ratios) == 1:
        return PairedRatio(ratios[0], ratios[0], ratios[0], 1)
    found = interval(ratios)
    if len(ratios) < MIN_VALUES_FOR_INTERVAL:
        return PairedRatio(found.center, min(ratios), max(ratios), len(ratios))
    return PairedRatio(found.center, found.low, found.high, len(ratios))
