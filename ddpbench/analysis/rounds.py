"""Rounds: built from the traces of all ranks, and split into parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum

import msgspec

from ddpbench.analysis.collective_wait import attribute_backward_stall, subsample_round
from ddpbench.record.record import Record, Round
from ddpbench.record.registry import ENGINES_WITHOUT_SYNC
from ddpbench.record.trace import Trace

MAX_FULL_TRACES = 64
"""Up to this many ranks, a round keeps every step of every rank.

Above, it keeps the totals of each rank and a sample of steps, the same on all ranks.
"""


def collect_round(index: int, traces: list[Trace], engine: str) -> Round:
    """Build a round from ``traces``, one per rank.

    With more than ``MAX_FULL_TRACES`` ranks it keeps the collective waits of all steps, and a sample of the steps. If ``engine`` does not
    sync ranks, their parameters need not agree, and no rank stalls another.
    """
    is_independent = engine in ENGINES_WITHOUT_SYNC
    if not is_independent and traces[0].host_lead_ms:  # on a CPU the backward goes on while an all-reduce waits
        traces = attribute_backward_stall(traces)
    full = Round(
        index=index,
        traces=traces,
        samples=sum(trace.samples for trace in traces),
        wall_s=max(trace.wall_s for trace in traces),
        params_in_sync=is_independent or len({trace.numerics.params_checksum_after for trace in traces}) == 1,
    )
    return subsample_round(full, -(-len(traces) // MAX_FULL_TRACES))


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
