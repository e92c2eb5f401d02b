"""Run length: rounds and steps that a figure or a verdict needs, and the interval that they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, fsum

import msgspec

from ddpbench.record.loaders import loader_spec
from ddpbench.record.record import Record, Round
from ddpbench.record.trace import Trace

MIN_ROUNDS, MIN_STEPS = 5, 30
"""Rounds and steps that a figure needs."""

MIN_ROUNDS_AND_STEPS_FOR_VERDICT = 3, 10
"""Rounds and steps that a verdict needs: with fewer, the bottleneck is a guess."""

MIN_VALUES_FOR_INTERVAL = 3
"""Values needed for a t-interval: that of two values is too wide to be useful, and their range is given instead."""

MIN_BATCHES_PER_PRODUCER = 4
"""Batches per worker or pipeline that a round needs: they come in bursts, which then average out."""


@dataclass(frozen=True)
class FigureInterval:
    """The interval of a figure in images/s or, with too few values, their range."""

    low: float
    high: float
    num_values: int  # rounds, or launches
    confidence: float | None  # None for a range


def figure_interval(record: Record) -> FigureInterval | None:
    """The interval of the record's throughput estimate; None without one.

    It is taken over launches if there are several, else over rounds.
    """
    estimate = record.throughput
    if estimate is None:
        return None
    figures = estimate.launch_samples_per_s or [timed.samples_per_s for timed in record.rounds]
    if len(figures) < MIN_VALUES_FOR_INTERVAL:
        return FigureInterval(min(figures), max(figures), len(figures), None)
    return FigureInterval(estimate.low, estimate.high, len(figures), estimate.confidence)


def timed_steps(record: Record) -> int:
    """Number of timed steps of all rounds."""
    return sum(timed.traces[0].steps for timed in record.rounds)


def missing_batches(record: Record) -> int:
    """Batches that the shortest round lacks to ``MIN_BATCHES_PER_PRODUCER`` per worker or pipeline; 0 if none."""
    shortest = min(timed.traces[0].steps for timed in record.rounds)
    return max(0, MIN_BATCHES_PER_PRODUCER * loader_spec(record.config.loader).num_producers(record.workers) - shortest)


def required_length(record: Record) -> Mapping[str, int]:
    """The ``rounds`` and, if needed, the ``steps`` per round that the next run needs for a well-supported figure.

    With --epochs the length of a round is fixed, so only ``rounds`` grows. Needs a round.
    """
    requested, steps_per_round = record.requested or record.config, min(timed.traces[0].steps for timed in record.rounds)
    rounds = max(requested.rounds, MIN_ROUNDS)
    if rounds * steps_per_round >= MIN_STEPS:
        return {"rounds": rounds}
    if requested.epochs is not None:
        return {"rounds": ceil(MIN_STEPS / steps_per_round)}
    return {"rounds": rounds, "steps": ceil(MIN_STEPS / rounds)}


def is_too_short_for_verdict(record: Record) -> bool:
    min_rounds, min_steps = MIN_ROUNDS_AND_STEPS_FOR_VERDICT
    return len(with_split_rounds(record).rounds) < min_rounds or timed_steps(record) < min_steps


def with_split_rounds(record: Record) -> Record:
    """``record`` with enough rounds to resample for a verdict: a few long trainings are split into parts."""
    return split_rounds(record, MIN_ROUNDS_AND_STEPS_FOR_VERDICT[0])


PARTS_PER_ROUND = 5
MIN_STEPS_PER_PART = 10
"""Steps that a part of a split round has at least."""


def split_rounds(record: Record, min_rounds: int) -> Record:
    """``record`` with each round split into ``PARTS_PER_ROUND`` parts.

    Returns ``record`` unchanged if it has ``min_rounds`` or more, or if its rounds are not trainings from scratch or are too short. What is
    counted for a whole round, such as its loader stats, is not in the parts.
    """
    traces = record.traces
    long = all(trace.steps >= PARTS_PER_ROUND * MIN_STEPS_PER_PART and len(trace.host_data_ms) >= PARTS_PER_ROUND for trace in traces)
    if len(record.rounds) >= min_rounds or not record.config.fresh or not long:
        return record
    parts = [part for timed in record.rounds for part in _split_round(timed)]
    return msgspec.structs.replace(record, rounds=[msgspec.structs.replace(part, index=index) for index, part in enumerate(parts)])


def _split_round(timed: Round) -> list[Round]:
    return [_part_of_round(timed, traces) for traces in zip(*(_split_trace(trace) for trace in timed.traces), strict=True)]


def _part_of_round(timed: Round, traces: Sequence[Trace]) -> Round:
    samples, wall_s = sum(trace.samples for trace in traces), max(trace.wall_s for trace in traces)
    return msgspec.structs.replace(timed, traces=list(traces), samples=samples, wall_s=wall_s, collective_wait=None)


def _split_trace(trace: Trace) -> list[Trace]:
    """The trace in parts with equal numbers of kept steps. Steps that were not kept are estimated from the kept ones of their part."""
    kept = len(trace.host_data_ms)
    ends = [place * kept // PARTS_PER_ROUND for place in range(PARTS_PER_ROUND + 1)]
    return [_slice_trace(trace, begin, end, round(trace.steps * (end - begin) / kept)) for begin, end in pairwise(ends)]


def _slice_trace(trace: Trace, begin: int, end: int, steps: int) -> Trace:
    phases_ms = {phase: durations[begin:end] for phase, durations in trace.phases_ms.items()}
    totals_ms = {phase: fsum(durations) * steps / (end - begin) for phase, durations in phases_ms.items()}
    return msgspec.structs.replace(
        trace,
        steps=steps,
        samples=round(trace.samples * steps / trace.steps),
        wall_s=fsum(totals_ms.values()) / 1000,
        phases_ms=phases_ms,
        totals_ms=totals_ms,
        host_data_ms=trace.host_data_ms[begin:end],
        host_lead_ms=trace.host_lead_ms[begin:end],
        host_issue_ms=trace.host_issue_ms[begin:end],
        cpu_s=None,
        thread_cpu_s=None,
        loader_stats=None,
        cpu_usage=None,
        health=None,
    )
