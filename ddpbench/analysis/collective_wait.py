"""What ranks wait for each other: for gradients on their way, and for data that come late on another rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from statistics import fmean

import msgspec

from ddpbench.record.record import CollectiveWait, Round
from ddpbench.record.trace import COLLECTIVE_PHASES, Trace

RankDurations = tuple[float, ...]
"""A duration in ms of every rank."""


def exposed_comm_ms(rounds: Sequence[Round]) -> float:
    """Mean over steps of the wait for other ranks that even the latest of a step has: what it takes where all are ready at once."""
    return _mean_over_steps([collective_waits(timed).min_rank_ms for timed in rounds], rounds) or 0.0


def peer_data_wait_ms(rounds: Sequence[Round]) -> float | None:
    """Mean over ranks and steps of the wait for a rank whose data came late; None without rounds.

    The late rank of a step is the one that waits least for others. What another rank waits longer than that counts as
    late data, but no more of it than the late rank waited longer for its own data.
    """
    return _mean_over_steps([collective_waits(timed).peer_data_wait_ms for timed in rounds], rounds)


def subsample_round(timed: Round, every: int) -> Round:
    """The round with one of every ``every`` steps, and with what all of them tell."""
    if every == 1:
        return timed
    return msgspec.structs.replace(
        timed, traces=[trace.subsample_steps(every) for trace in timed.traces], collective_wait=collective_waits(timed)
    )


def collective_waits(timed: Round) -> CollectiveWait:
    """Means over all steps. Of a round thinned without them, sums tell how long ranks waited, and the kept steps what for."""
    if timed.collective_wait:
        return timed.collective_wait
    traces = timed.traces
    waits, sync = _step_durations(traces, COLLECTIVE_PHASES), _step_durations(traces, ["sync"])
    late = [fmean(_peer_data_waits(waits_ms, data_ms)) for waits_ms, data_ms in zip(waits, _step_durations(traces, ["data"]), strict=True)]
    return CollectiveWait(
        peer_data_wait_ms=_scaled_to_all_steps(late, waits, traces, COLLECTIVE_PHASES),
        min_rank_ms=_scaled_to_all_steps(map(min, waits), waits, traces, COLLECTIVE_PHASES),
        min_rank_sync_ms=_scaled_to_all_steps(map(min, sync), sync, traces, ["sync"]),
    )


def _peer_data_waits(waits_ms: RankDurations, data_ms: RankDurations) -> list[float]:
    """Of the ranks' waits in one step, those for late data."""
    least_ms = min(waits_ms)
    latest_data_ms = data_ms[waits_ms.index(least_ms)]
    return [max(0.0, min(wait - least_ms, latest_data_ms - own)) for wait, own in zip(waits_ms, data_ms, strict=True)]


def _step_durations(traces: Sequence[Trace], phases: Sequence[str]) -> list[RankDurations]:
    """How long ``phases`` took together, in every step that is kept."""
    return list(
        zip(*([fsum(parts) for parts in zip(*(trace.phases_ms[name] for name in phases), strict=True)] for trace in traces), strict=False)
    )


def _scaled_to_all_steps(parts: Iterable[float], kept: Sequence[RankDurations], traces: Sequence[Trace], phases: Sequence[str]) -> float:
    """The mean of ``parts``, one a step that is ``kept``, as the same fraction of what ``phases`` took in all steps."""
    kept_ms = fmean(map(fmean, kept)) if kept else 0.0
    all_ms = fmean(fsum(trace.total_ms(name) for name in phases) / trace.steps for trace in traces)
    return fmean(parts) * all_ms / kept_ms if kept_ms else 0.0


def _mean_over_steps(step_means: Sequence[float], rounds: Sequence[Round]) -> float | None:
    """Over all steps of ``rounds``."""
    steps = [max(trace.steps for trace in timed.traces) for timed in rounds]
    return fmean(step_means, steps) if steps else None
