"""Throughput of a record: the estimate, within a launch and across launches, and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, hypot, inf, log
from statistics import median, stdev

import msgspec

from ddpbench.analysis.stats import MIN_VALUES_FOR_INTERVAL, Interval, coefficient_of_variation, log_t_interval, t_quantile
from ddpbench.record.record import Record, Round, ThroughputEstimate

ASSUMED_LAUNCH_SD = 0.004
"""Assumed standard deviation between launches of one command, without a history on this machine: measured on H200s."""

MIN_HISTORY = 3
"""Earlier runs needed to use their own standard deviation."""

THROUGHPUT_CONFIDENCE = 0.95
"""Confidence level of the interval of a throughput estimate."""


def estimate_throughput(figures: Sequence[float], history: Sequence[float] = ()) -> ThroughputEstimate:
    """The throughput of a launch whose rounds gave ``figures``, in images/s. A single round has no interval: low and high equal its figure.

    The interval is the t-interval of the mean, widened to contain the figure, which is the median: if a few of many rounds are slow, the
    two differ. The interval across launches adds the half-widths for rounds and for launches in quadrature, each with its own t: it is
    never narrower than the one within this launch.
    """
    figure, rounds = median(figures), len(figures)
    mean = log_t_interval(figures, THROUGHPUT_CONFIDENCE) if rounds > 1 else Interval(figure, figure, figure)
    has_history = len(history) >= MIN_HISTORY
    launch_sd = stdev(map(log, history)) if has_history else ASSUMED_LAUNCH_SD
    launch_half_width = launch_sd * t_quantile((1 + THROUGHPUT_CONFIDENCE) / 2, len(history) - 1 if has_history else inf)
    factor = exp(hypot(log(mean.high / mean.center), launch_half_width))
    within, across = mean.recentered(figure), Interval(mean.center, mean.center / factor, mean.center * factor).recentered(figure)
    return ThroughputEstimate(
        samples_per_s=figure,
        low=within.low,
        high=within.high,
        rounds=rounds,
        round_cv=coefficient_of_variation(figures) if rounds > 1 else 0.0,
        launch_low=across.low,
        launch_high=across.high,
        launch_sd=launch_sd,
        launch_source="earlier_runs" if has_history else "assumed",
        num_launches=len(history) if has_history else 0,
        confidence=THROUGHPUT_CONFIDENCE,
    )


def estimate_control_run(rounds: Sequence[Round]) -> ThroughputEstimate:
    """The throughput of a control run of a diagnosis: of all ``rounds`` together, as its verdict and its predictions use them."""
    found = estimate_throughput([timed.samples_per_s for timed in rounds])
    rate = sum(timed.samples for timed in rounds) / fsum(timed.wall_s for timed in rounds)
    within, across = (Interval(rate, *edges).recentered(rate) for edges in ((found.low, found.high), (found.launch_low, found.launch_high)))
    return msgspec.structs.replace(
        found, samples_per_s=rate, low=within.low, high=within.high, launch_low=across.low, launch_high=across.high
    )


def estimate_across_launches(last: ThroughputEstimate, figures: Sequence[float]) -> ThroughputEstimate:
    """The throughput of several launches that gave ``figures``; ``last`` is that of the last one, whose rounds the record holds."""
    found = log_t_interval(figures, THROUGHPUT_CONFIDENCE).recentered(median(figures))
    return msgspec.structs.replace(
        last,
        samples_per_s=found.center,
        low=found.low,
        high=found.high,
        launch_low=found.low,
        launch_high=found.high,
        launch_sd=stdev(map(log, figures)),
        launch_source="launches",
        num_launches=len(figures),
        launch_samples_per_s=list(figures),
    )


@dataclass(frozen=True)
class ThroughputInterval:
    """The interval of a figure in images/s or, with too few values, their range."""

    low: float
    high: float
    num_values: int  # rounds, or launches
    confidence: float | None  # None for a range


def throughput_interval(record: Record) -> ThroughputInterval | None:
    """The interval of the record's throughput estimate; None without one.

    It is taken over launches if there are several, else over rounds.
    """
    estimate = record.throughput
    if estimate is None:
        return None
    figures = estimate.launch_samples_per_s or [timed.samples_per_s for timed in record.rounds]
    if len(figures) < MIN_VALUES_FOR_INTERVAL:
        return ThroughputInterval(min(figures), max(figures), len(figures), None)
    return ThroughputInterval(estimate.low, estimate.high, len(figures), estimate.confidence)
