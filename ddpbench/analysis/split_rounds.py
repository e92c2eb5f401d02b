"""A training cut into parts: few rounds that are each a long training tell by their parts whether they agree with themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum

import msgspec

from ddpbench.record.record import Record, Round
from ddpbench.record.trace import Trace

PARTS = 5
LEAST_STEPS = 10
"""Of a part."""


def in_parts(record: Record, enough: int) -> Record:
    """``record`` with each round cut into ``PARTS``, where it holds fewer rounds than ``enough`` and every one is a long training.

    Else as it is. What is counted for a round as a whole, such as what its loader did, is left out of the parts.
    """
    traces = record.traces
    long = all(trace.steps >= PARTS * LEAST_STEPS and len(trace.host_data_ms) >= PARTS for trace in traces)
    if len(record.rounds) >= enough or not record.config.fresh or not long:
        return record
    parts = [part for timed in record.rounds for part in _parts(timed)]
    return msgspec.structs.replace(record, rounds=[msgspec.structs.replace(part, index=place) for place, part in enumerate(parts)])


def _parts(timed: Round) -> list[Round]:
    return [_round(timed, traces) for traces in zip(*(_cut(trace) for trace in timed.traces), strict=True)]


def _round(timed: Round, traces: Sequence[Trace]) -> Round:
    images, wall_s = sum(trace.images for trace in traces), max(trace.wall_s for trace in traces)
    return msgspec.structs.replace(timed, traces=list(traces), images=images, wall_s=wall_s, waits=None)


def _cut(trace: Trace) -> list[Trace]:
    """The trace in parts of as many kept steps as possible each; a step that was not kept counts as the kept ones of its part do."""
    kept = len(trace.host_data_ms)
    ends = [place * kept // PARTS for place in range(PARTS + 1)]
    return [_between(trace, begin, end, round(trace.steps * (end - begin) / kept)) for begin, end in pairwise(ends)]


def _between(trace: Trace, begin: int, end: int, steps: int) -> Trace:
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
        lead_ms=trace.lead_ms[begin:end],
        issuing_ms=trace.issuing_ms[begin:end],
        cpu_s=None,
        thread_cpu_s=None,
        loading=None,
        cores=None,
        health=None,
    )
