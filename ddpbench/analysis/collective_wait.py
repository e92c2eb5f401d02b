"""Time that ranks wait for each other: exposed communication, peer data, backward stalls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from statistics import fmean, median

import msgspec

from ddpbench.record.record import CollectiveWait, Round
from ddpbench.record.trace import COLLECTIVE_PHASES, DATA_PHASES, Trace

RankDurations = tuple[float, ...]
"""One duration in ms per rank."""


def exposed_comm_ms(rounds: Sequence[Round]) -> float:
    """Mean exposed communication per step, in ms: collectives that overlap no compute; 0 without rounds.

    Measured from the phases "sync" (gradient all-reduce) and "broadcast" (buffers) of the rank that spends least in them in each step: it
    waits for no late rank, so that only communication is left. Used for ``AnalysisInput.max_wait_ms`` and, minus what a single rank spends
    in its collectives, for the scaling loss "exposed-comm" (``scaling/waterfall.py``, ``scaling/ladder.py``).
    """
    return _mean_over_steps([collective_waits(timed).min_rank_ms for timed in rounds], rounds) or 0.0


def exposed_allreduce_ms(rounds: Sequence[Round]) -> float:
    """Mean exposed all-reduce of gradients per step, in ms: the part that backward does not hide; 0 without rounds.

    Measured like ``exposed_comm_ms``, but from the phase "sync" alone: it excludes the broadcast of buffers. Used for the fraction of
    all-reduce that backward hides (``scaling/allreduce.py``).
    """
    return _mean_over_steps([collective_waits(timed).min_rank_sync_ms for timed in rounds], rounds) or 0.0


def peer_data_wait_ms(rounds: Sequence[Round]) -> float | None:
    """Mean wait per rank and step for another rank's late data, in ms; None without rounds.

    The late rank of a step is the one that waits least for the others. What another rank waits longer than that counts as waiting for late
    data, but at most by as much as the late rank waited longer for its own data.
    """
    return _mean_over_steps([collective_waits(timed).peer_data_wait_ms for timed in rounds], rounds)


def subsample_round(timed: Round, every: int) -> Round:
    """``timed`` with one of every ``every`` steps, and the collective waits of all its steps."""
    if every == 1:
        return timed
    return msgspec.structs.replace(
        timed, traces=[trace.subsample_steps(every) for trace in timed.traces], collective_wait=collective_waits(timed)
    )


def collective_waits(timed: Round) -> CollectiveWait:
    """Collective waits of a round, as means over all its steps.

    If a subsampled round does not store them, its totals give how long ranks waited, and the kept steps how the wait is divided.
    """
    if timed.collective_wait:
        return timed.collective_wait
    traces = timed.traces
    waits, sync = _step_durations(traces, COLLECTIVE_PHASES), _step_durations(traces, ["sync"])
    data_phases = [phase for phase in DATA_PHASES if phase in traces[0].phases_ms]
    late = [
        fmean(_peer_data_waits(waits_ms, data_ms)) for waits_ms, data_ms in zip(waits, _step_durations(traces, data_phases), strict=True)
    ]
    return CollectiveWait(
        peer_data_wait_ms=_scaled_to_all_steps(late, waits, traces, COLLECTIVE_PHASES),
        min_rank_ms=_scaled_to_all_steps(map(min, waits), waits, traces, COLLECTIVE_PHASES),
        min_rank_sync_ms=_scaled_to_all_steps(map(min, sync), sync, traces, ["sync"]),
    )


def _peer_data_waits(waits_ms: RankDurations, data_ms: RankDurations) -> list[float]:
    """For each rank, the part of its wait in one step that is for late data."""
    least_ms = min(waits_ms)
    latest_data_ms = data_ms[waits_ms.index(least_ms)]
    return [max(0.0, min(wait - least_ms, latest_data_ms - own_data_ms)) for wait, own_data_ms in zip(waits_ms, data_ms, strict=True)]


def _step_durations(traces: Sequence[Trace], phases: Sequence[str]) -> list[RankDurations]:
    """The sum of ``phases`` in every kept step."""
    return list(
        zip(*([fsum(parts) for parts in zip(*(trace.phases_ms[name] for name in phases), strict=True)] for trace in traces), strict=False)
    )


def _scaled_to_all_steps(parts: Iterable[float], kept: Sequence[RankDurations], traces: Sequence[Trace], phases: Sequence[str]) -> float:
    """The mean of ``parts``, one per kept step, scaled to all steps.

    ``parts`` are assumed to be the same fraction of ``phases`` in all steps as in the ``kept`` ones.
    """
    kept_ms = fmean(map(fmean, kept)) if kept else 0.0
    all_ms = fmean(fsum(trace.total_ms(name) for name in phases) / trace.steps for trace in traces)
    return fmean(parts) * all_ms / kept_ms if kept_ms else 0.0


def _mean_over_steps(step_means: Sequence[float], rounds: Sequence[Round]) -> float | None:
    """The mean over all steps of ``rounds``; None without rounds."""
    steps = [max(trace.steps for trace in timed.traces) for timed in rounds]
    return fsum(mean * number for mean, number in zip(step_means, steps, strict=True)) / sum(steps) if steps else None


PHASES_BEFORE_BACKWARD = ("data", "host_to_device", "broadcast", "forward")
"""Phases of a rank between the end of an all-reduce, which all ranks share, and the start of its backward."""

ON_TIME_FRACTION = 0.05
"""A backward is on time if the last rank starts its own at most this fraction of the backward later: nothing stalls it."""

MIN_ON_TIME_STEPS = 3
"""On-time steps needed to measure the unstalled backward of a rank."""


def attribute_backward_stall(traces: Sequence[Trace]) -> list[Trace]:
    """The traces of one round, one per rank, with the stall of each backward counted as sync.

    An all-reduce that waits for a late rank keeps multiprocessors busy, and kernels of the backward that need the whole device wait with
    it: on two H200s the backward of ResNet-50 takes 27 ms, but 384 ms in a step in which the other rank's data are 354 ms late. The stall
    of a step is what its backward takes longer than the rank's on-time backward, but at most the time by which the last rank starts its
    backward after this one. A rank with too few on-time steps is compared with the fastest on-time backward of the others.
    """
    starts_ms = [
        [fsum(step) for step in zip(*(trace.phases_ms[phase] for phase in PHASES_BEFORE_BACKWARD), strict=True)] for trace in traces
    ]
    last = [max(step) for step in zip(*starts_ms, strict=True)]
    late = [[latest - start for start, latest in zip(steps, last, strict=True)] for steps in starts_ms]
    unstalled_ms = [_unstalled_backward_ms(trace, late_ms) for trace, late_ms in zip(traces, late, strict=True)]
    fastest_ms = min((each for each in unstalled_ms if each is not None), default=None)
    if fastest_ms is None:
        return list(traces)
    return [
        _with_stall_as_sync(trace, fastest_ms if unstalled is None else unstalled, late_ms)
        for trace, unstalled, late_ms in zip(traces, unstalled_ms, late, strict=True)
    ]


def _unstalled_backward_ms(trace: Trace, late: Sequence[float]) -> float | None:
    """The median backward of the on-time steps; None if there are too few of them."""
    on_time = [
        duration_ms
        for duration_ms, late_ms in zip(trace.phases_ms["backward"], late, strict=True)
        if late_ms <= ON_TIME_FRACTION * duration_ms
    ]
    return median(on_time) if len(on_time) >= MIN_ON_TIME_STEPS else None


def _with_stall_as_sync(trace: Trace, unstalled_ms: float, late: Sequence[float]) -> Trace:
    backward, sync = trace.phases_ms["backward"], trace.phases_ms["sync"]
    stalls_ms = [min(max(0.0, duration_ms - unstalled_ms), stall_ms) for duration_ms, stall_ms in zip(backward, late, strict=True)]
    phases = {
        "backward": [round(duration_ms - stall_ms, 4) for duration_ms, stall_ms in zip(backward, stalls_ms, strict=True)],
        "sync": [round(duration_ms + stall_ms, 4) for duration_ms, stall_ms in zip(sync, stalls_ms, strict=True)],
    }
    total_stall_ms = fsum(stalls_ms) * trace.steps / len(stalls_ms) if stalls_ms else 0.0
    totals = {**trace.totals_ms}
    if totals:
        totals["backward"], totals["sync"] = totals["backward"] - total_stall_ms, totals["sync"] + total_stall_ms
    return msgspec.structs.replace(trace, phases_ms={**trace.phases_ms, **phases}, totals_ms=totals, backward_stall_ms=total_stall_ms)
