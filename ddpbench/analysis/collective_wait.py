"""What ranks wait for each other: for gradients on their way, and for data that come late on another rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from statistics import fmean

import msgspec

from ddpbench.record.record import Round, Waits
from ddpbench.record.trace import WAITS_FOR_OTHERS, Trace

Step = tuple[float, ...]
"""A duration in ms of every rank."""


def exchange_ms(rounds: Sequence[Round]) -> float:
    """Mean over steps of the wait for other ranks that even the latest of a step has: what it takes where all are ready at once."""
    return _mean([waits_of(timed).least_ms for timed in rounds], rounds) or 0.0


def late_data_ms(rounds: Sequence[Round]) -> float | None:
    """Mean over ranks and steps of the wait for a rank whose data came late; None without rounds.

    The late rank of a step is the one that waits least for others. What another rank waits longer than that counts as
    late data, but no more of it than the late rank waited longer for its own data.
    """
    return _mean([waits_of(timed).late_data_ms for timed in rounds], rounds)


def thinned(timed: Round, every: int) -> Round:
    """The round with one of every ``every`` steps, and with what all of them tell."""
    if every == 1:
        return timed
    return msgspec.structs.replace(timed, traces=[trace.thinned(every) for trace in timed.traces], waits=waits_of(timed))


def waits_of(timed: Round) -> Waits:
    """Means over all steps. Of a round thinned without them, sums tell how long ranks waited, and the kept steps what for."""
    if timed.waits:
        return timed.waits
    traces = timed.traces
    waits, sync = _steps(traces, WAITS_FOR_OTHERS), _steps(traces, ["sync"])
    late = [fmean(_late(waits_ms, data_ms)) for waits_ms, data_ms in zip(waits, _steps(traces, ["data"]), strict=True)]
    return Waits(
        late_data_ms=_of_all(late, waits, traces, WAITS_FOR_OTHERS),
        least_ms=_of_all(map(min, waits), waits, traces, WAITS_FOR_OTHERS),
        least_sync_ms=_of_all(map(min, sync), sync, traces, ["sync"]),
    )


def _late(waits_ms: Step, data_ms: Step) -> list[float]:
    """Of the ranks' waits in one step, those for late data."""
    least_ms = min(waits_ms)
    latest_data_ms = data_ms[waits_ms.index(least_ms)]
    return [max(0.0, min(wait - least_ms, latest_data_ms - own)) for wait, own in zip(waits_ms, data_ms, strict=True)]


def _steps(traces: Sequence[Trace], phases: Sequence[str]) -> list[Step]:
    """How long ``phases`` took together, in every step that is kept."""
    return list(
        zip(*([fsum(parts) for parts in zip(*(trace.phases_ms[name] for name in phases), strict=True)] for trace in traces), strict=False)
    )


def _of_all(parts: Iterable[float], kept: Sequence[Step], traces: Sequence[Trace], phases: Sequence[str]) -> float:
    """The mean of ``parts``, one a step that is ``kept``, as the same fraction of what ``phases`` took in all steps."""
    kept_ms = fmean(map(fmean, kept)) if kept else 0.0
    all_ms = fmean(fsum(trace.total_ms(name) for name in phases) / trace.steps for trace in traces)
    return fmean(parts) * all_ms / kept_ms if kept_ms else 0.0


def _mean(of_a_step: Sequence[float], rounds: Sequence[Round]) -> float | None:
    """Over all steps of ``rounds``."""
    steps = [max(trace.steps for trace in timed.traces) for timed in rounds]
    return fmean(of_a_step, steps) if steps else None
