"""Judge a record: its checks, its throughput estimate and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, hypot, inf, log
from statistics import median, stdev

import msgspec

from ddpbench.analysis.bottleneck.verdict import find_bottleneck
from ddpbench.analysis.checks.rules import run_checks
from ddpbench.analysis.controls import NO_CONTROLS, ControlRuns, baseline_of, controls_of
from ddpbench.analysis.scaling.runs import scaling_runs
from ddpbench.analysis.scaling.verdict import judge_scaling
from ddpbench.analysis.stats import Interval, coefficient_of_variation, log_t_interval, t_quantile
from ddpbench.analysis.summary import summarize
from ddpbench.record.config import measurement_config
from ddpbench.record.record import Job, Record, ThroughputEstimate
from ddpbench.record.roles import ALLREDUCE_ONLY

ASSUMED_LAUNCH_SD = 0.004
"""Assumed standard deviation between launches of one command, without a history on this machine: measured on H200s."""

MIN_HISTORY = 3
"""Earlier runs needed to use their own standard deviation."""

THROUGHPUT_CONFIDENCE = 0.95
"""Confidence level of the interval of a throughput estimate."""


def judge_all(job: Job, history: Callable[[Record], Sequence[float]] = lambda record: ()) -> None:
    """Judge every record of ``job``: a diagnosed run with its control runs, the points of a scaling job together.

    Control runs and scaling points get no verdict of their own. ``history`` returns the images/s of earlier runs of the same Config on the
    same machine.
    """
    baseline = baseline_of(job)
    for record in job.records:
        if record is baseline:
            judge(record, history(record), controls=controls_of(job))
        elif baseline is None and job.scaling is None:
            judge(record, history(record), job.swept)
        else:
            judge_throughput(record, history(record))
            record.verdict = None
    if runs := scaling_runs(job):
        judge_scaling(job, runs)


def judge(record: Record, history: Sequence[float] = (), swept: Sequence[str] = (), controls: ControlRuns = NO_CONTROLS) -> None:
    """Fill in ``checks``, ``throughput`` and ``verdict`` of ``record`` from its rounds, whatever its status.

    ``history`` holds the images/s of earlier runs, ``swept`` the fields that the job compares, and ``controls`` the control runs.
    """
    judge_throughput(record, history)
    has_error = any(check.severity == "error" for check in record.checks)
    record.verdict = None if has_error or record.role == ALLREDUCE_ONLY else find_bottleneck(record, summarize(record), swept, controls)


def judge_throughput(record: Record, history: Sequence[float] = ()) -> None:
    """Fill in ``checks`` and ``throughput`` of ``record``.

    A check of severity "error" leaves the figure None, and changes the status "ok" to "invalid". ``history`` holds the images/s of earlier
    runs of the same Config on the same machine.
    """
    record.checks = [] if record.role == ALLREDUCE_ONLY else run_checks(record)  # an all-reduce benchmark trains nothing
    has_error = any(check.severity == "error" for check in record.checks)
    if has_error and record.status == "ok":
        record.status = "invalid"
    record.throughput = (
        None if has_error or not record.rounds else estimate_throughput([timed.samples_per_s for timed in record.rounds], history)
    )


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


def previous_figures(record: Record, previous: Sequence[Record]) -> list[float]:
    """The images/s of the valid ones among ``previous`` with the same Config, hosts, devices and software as ``record``.

    ``record`` itself is excluded.
    """
    return [other.throughput.samples_per_s for other in previous if other.throughput and _is_repeat(other, record)]


def _is_repeat(other: Record, record: Record) -> bool:
    """Whether ``other`` is another valid launch of the same Config on the same machine.

    Records with the same process ids are of one launch. A merged record is of several, and does not count.
    """
    if (
        other.status != "ok"
        or any(check.severity != "info" for check in other.checks)
        or (other.throughput and other.throughput.launch_samples_per_s)
    ):
        return False
    environment, other_environment = record.environment, other.environment
    same_machine = [(place.host, place.device_name) for place in other_environment.placements] == [
        (place.host, place.device_name) for place in environment.placements
    ]
    same_launch = [(place.host, place.pid) for place in other_environment.placements] == [
        (place.host, place.pid) for place in environment.placements
    ]
    same_config = measurement_config(other.config) == measurement_config(record.config) and other.role == record.role
    return same_config and other_environment.software == environment.software and same_machine and not same_launch
