"""A backward that stands still because another rank is late: on a GPU that wait is found inside it, and belongs to the sync."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from statistics import median

import msgspec

from ddpbench.record.trace import Trace

PHASES_BEFORE_BACKWARD = ("data", "host_to_device", "broadcast", "forward")
"""What a rank does between the end of one all-reduce, which all ranks share, and the beginning of its backward."""

ON_TIME_FRACTION = 0.05
"""No other rank begins its backward later than this fraction of one's own backward: nothing holds that."""

MIN_ON_TIME_STEPS = 3
"""On time, to tell how long a rank's backward takes by itself."""


def attribute_backward_stall(traces: Sequence[Trace]) -> list[Trace]:
    """The traces of one round, one a rank, with what held each backward taken out of it and counted as sync.

    An all-reduce that waits for a late rank keeps multiprocessors busy, and kernels of the backward that need the whole device at once
    wait with it: on two H200s the backward of ResNet-50 takes 27 ms, and 384 in the step in which the other rank's data are 354 ms late.
    A step is held by what its backward takes longer than the rank's own backward does when nobody is late, but never by more than the
    last rank begins its backward after this one. Ranks without a step on time are measured by the quickest of the others.
    """
    begun = [[fsum(step) for step in zip(*(trace.phases_ms[phase] for phase in PHASES_BEFORE_BACKWARD), strict=True)] for trace in traces]
    last = [max(step) for step in zip(*begun, strict=True)]
    late = [[latest - own for own, latest in zip(steps, last, strict=True)] for steps in begun]
    alone = [_unstalled_backward_ms(trace, by) for trace, by in zip(traces, late, strict=True)]
    quickest = min((each for each in alone if each is not None), default=None)
    if quickest is None:
        return list(traces)
    return [_with_stall_as_sync(trace, quickest if own is None else own, by) for trace, own, by in zip(traces, alone, late, strict=True)]


def _unstalled_backward_ms(trace: Trace, late: Sequence[float]) -> float | None:
    """How long its backward takes when nobody is late; None where somebody nearly always is."""
    on_time = [took for took, by in zip(trace.phases_ms["backward"], late, strict=True) if by <= ON_TIME_FRACTION * took]
    return median(on_time) if len(on_time) >= MIN_ON_TIME_STEPS else None


def _with_stall_as_sync(trace: Trace, unstalled_ms: float, late: Sequence[float]) -> Trace:
    backward, sync = trace.phases_ms["backward"], trace.phases_ms["sync"]
    held = [min(max(0.0, took - unstalled_ms), by) for took, by in zip(backward, late, strict=True)]
    phases = {
        "backward": [round(took - by, 4) for took, by in zip(backward, held, strict=True)],
        "sync": [round(took + by, 4) for took, by in zip(sync, held, strict=True)],
    }
    held_ms = fsum(held) * trace.steps / len(held) if held else 0.0
    totals = {**trace.totals_ms}
    if totals:
        totals["backward"], totals["sync"] = totals["backward"] - held_ms, totals["sync"] + held_ms
    return msgspec.structs.replace(trace, phases_ms={**trace.phases_ms, **phases}, totals_ms=totals, backward_stall_ms=held_ms)
