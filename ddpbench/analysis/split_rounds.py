"""A training cut into parts: few rounds that are each a long training tell by their parts whether they agree with themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum

import msgspec

from ddpbench.record.record import Record, Round
from ddpbench.record.trace import Trace

PARTS_PER_ROUND = 5
MIN_STEPS_PER_PART = 10
"""Of a part."""


def split_rounds(record: Record, min_rounds: int) -> Record:
    """``record`` with each round cut into ``PARTS``, where it holds fewer rounds than ``min_rounds`` and every one is a long training.

    Else as it is. What is counted for a round as a whole, such as what its loader did, is left out of the parts.
    """
    traces = record.traces
    long = all(trace.steps >= PARTS_PER_ROUND * MIN_STEPS_PER_PART and len(trace.host_data_ms) >= PARTS_PER_ROUND for trace in traces)
    if len(record.rounds) >= min_rounds or not record.config.fresh or not long:
        return record
    parts = [part for timed in record.rounds for part in _split_round(timed)]
    return msgspec.structs.replace(record, rounds=[msgspec.structs.replace(part, index=place) for place, part in enumerate(parts)])


def _split_round(timed: Round) -> list[Round]:
    return [_part_of_round(timed, traces) for traces in zip(*(_split_trace(trace) for trace in timed.traces), strict=True)]


def _part_of_round(timed: Round, traces: Sequence[Trace]) -> Round:
    images, wall_s = sum(trace.images for trace in traces), max(trace.wall_s for trace in traces)
    return msgspec.structs.replace(timed, traces=list(traces), images=images, wall_s=wall_s, collective_wait=None)


def _split_trace(trace: Trace) -> list[Trace]:
    """The trace in parts of as many kept steps as possible each; a step that was not kept counts as the kept ones of its part do."""
    kept = len(trace.host_data_ms)
    ends = [place * kept // PARTS_PER_ROUND for place in range(PARTS_PER_ROUND + 1)]
    return [_slice_trace(trace, begin, end, round(trace.steps * (end - begin) / kept)) for begin, end in pairwise(ends)]


def _slice_trace(trace: Trace, begin: int, end: int, steps: int) -> Trace:
    phases_ms = {phase: durations[begin:end] for phase, durations in trace.phases_ms.items()}
    totals_ms = {phase: fsum(durations) * steps / (end - begin) for phase, durations in phases_ms.items()}
    return msgspec.structs.replace(
        trace,
        steps=steps,
        images=round(trace.images * steps / trace.steps),
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
