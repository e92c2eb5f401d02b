"""Waits of ranks for each other: exposed communication, late data, stalled backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from statistics import fmean, median

import msgspec

from ddpbench.analysis.straggler import SERIOUS_THROTTLE_REASONS
from ddpbench.record.record import CollectiveWait, Round
from ddpbench.record.registry import ENGINES_WITHOUT_SYNC
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


MAX_FULL_TRACES = 64
"""Up to this many ranks every step of every rank is kept; above, every rank's sums, and a sample of its steps, the same of all."""


def collect_round(index: int, traces: list[Trace], engine: str) -> Round:
    """The round that ``traces``, one a rank, make: of more ranks than ``MOST_RAW`` with what all steps tell, and a sample of them.

    Ranks that train for themselves have nothing to agree on, and none holds another.
    """
    apart = engine in ENGINES_WITHOUT_SYNC
    if not apart and traces[0].host_lead_ms:  # on a CPU the backward computes on while an all-reduce waits
        traces = attribute_backward_stall(traces)
    whole = Round(
        index=index,
        traces=traces,
        images=sum(trace.images for trace in traces),
        wall_s=max(trace.wall_s for trace in traces),
        params_in_sync=apart or len({trace.numerics.params_checksum_after for trace in traces}) == 1,
    )
    return subsample_round(whole, -(-len(traces) // MAX_FULL_TRACES))


def was_throttled(trace: Trace) -> bool:
    """Whether the device of that rank was throttled in the round."""
    return trace.health is not None and bool(SERIOUS_THROTTLE_REASONS & set(trace.health.throttle_reasons))
