"""Find a slow rank by its own time, and the reason. All-reduce makes all step times equal, so they cannot show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log1p
from statistics import fmean, median

from ddpbench.analysis.ranks import RankRow, drop_none, own_ms
from ddpbench.analysis.stats import MIN_VALUES_FOR_INTERVAL, t_interval
from ddpbench.record.bottleneck import StragglerKind
from ddpbench.record.record import Record, Round
from ddpbench.record.trace import COLLECTIVE_PHASES, PHASES, Trace

MIN_EXCESS_FRACTION = {"cuda": 0.025, "cpu": 0.05}
"""A rank is slow from this fraction over the median own time of the others.

Healthy H200s of one node differ by up to 0.6%, by the same in every round; CPU cores differ by more.
"""

SIGNIFICANCE_LEVEL = 0.01
"""Level of the t-test over rounds that separates a slow rank from one that is slowest by chance."""

HOST_FAULT_FRACTION = 0.5
"""Slow computing is the host's fault if the host accounts for at least this fraction of the extra time.

On a GPU it was still issuing kernels, in the median step; on CPU the rank's thread was off its core.
"""

LOW_CLOCK_FRACTION = 0.97
"""The clock makes a rank slow if its SM clock is below this fraction of the others'."""

SERIOUS_THROTTLE_REASONS = frozenset({"hw-slowdown", "hw-thermal", "sw-thermal", "hw-power-brake"})
"""Reasons that indicate a GPU in trouble; many GPUs always run at a software power cap."""


MIN_BATCH_IMBALANCE = 1.1
"""Batches are unequal if the largest of a step has this many times as many elements as the mean of all ranks."""


def unequal_batches(rounds: Sequence[Round], largest_rank: int | None = None) -> float | None:
    """Elements of the largest batch of a step over the mean of all ranks; None if they are about equal, or unknown.

    None, too, if ``largest_rank`` is given and is not the one that has it.
    """
    ratios = [timed.batch_imbalance for timed in rounds if timed.batch_imbalance is not None]
    ratio = fmean(ratios) if ratios and len(ratios) == len(rounds) else 0.0
    if ratio < MIN_BATCH_IMBALANCE or (largest_rank is not None and any(timed.largest_batch_rank != largest_rank for timed in rounds)):
        return None
    return ratio


@dataclass(frozen=True)
class Straggler:
    """The one slow rank, the slowest of every round."""

    rank: int
    host: str
    device_index: int
    slow_in: StragglerKind
    excess_fraction: float  # own time over the median of the others, 0.2 is 20% more; of the median step if the mean is not slow
    lost_ms_per_step: float  # compared with the next slowest rank: what the job would gain without this one
    cost_samples_per_s: float  # the same, as throughput of all ranks
    is_costly: bool  # False if it is slow only in its median step and pauses of the others may cost as much


def find_straggler(record: Record, rows: Sequence[RankRow]) -> Straggler | None:
    """The rank that was slowest by its own time in every round, or None.

    Its excess over the median of the others, by the mean of its steps or by their median, must reach ``MIN_EXCESS_FRACTION`` and be
    significant; with two rounds, it must reach it in both. And its distance to the next slowest rank must exceed the range of the others.
    ``rows`` are those of ``rank_rows``. Needs two ranks and two rounds.
    """
    if len(rows) < 2 or len(record.rounds) < 2:
        return None
    slow, *others = rows
    threshold = MIN_EXCESS_FRACTION[record.environment.device_type]
    excesses = {own: [_excess(slow.rank, timed, own) for timed in record.rounds] for own in (own_ms, median_own_ms)}
    slow_by = next((own for own, each in excesses.items() if _is_significant(each, threshold)), None)
    if slow_by is None:
        return None
    typical_ms = median(row.own_ms for row in others)
    spread_ms = max(row.own_ms for row in others) - min(row.own_ms for row in others)
    lost_ms = slow.own_ms - others[0].own_ms
    if lost_ms <= spread_ms:
        return None
    images_per_ms = sum(timed.samples for timed in record.rounds) / sum(1000 * timed.wall_s for timed in record.rounds)
    return Straggler(
        rank=slow.rank,
        host=slow.host,
        device_index=slow.device_index,
        slow_in=_slow_in(slow, others, record.environment.device_type),
        excess_fraction=slow.own_ms / typical_ms - 1 if slow_by is own_ms else fmean(drop_none(excesses[slow_by])),
        lost_ms_per_step=lost_ms,
        cost_samples_per_s=1000 * images_per_ms * lost_ms / (slow.step_ms - lost_ms),
        is_costly=slow_by is own_ms or lost_ms >= threshold * typical_ms,
    )


def suspected_straggler(record: Record, rows: Sequence[RankRow]) -> int | None:
    """The rank that is slowest on average by ``MIN_EXCESS_FRACTION`` or more: a straggler, or slow by chance."""
    if len(rows) < 2:
        return None
    slow, *others = rows
    excess = slow.own_ms / median(row.own_ms for row in others) - 1
    return slow.rank if excess >= MIN_EXCESS_FRACTION[record.environment.device_type] else None


def median_own_ms(trace: Trace) -> float:
    """A rank's own time in its median step, which occasional pauses caused by other processes do not change."""
    own_phases = [trace.phases_ms[phase] for phase in PHASES if phase not in COLLECTIVE_PHASES]
    return median(map(sum, zip(*own_phases, strict=True)))


def _excess(rank: int, timed: Round, own_of: Callable[[Trace], float]) -> float | None:
    """Own time over the median of the others, a fraction; None if another rank was slower in that round, or all others only waited."""
    own = {trace.rank: own_of(trace) for trace in timed.traces}
    slow, typical = own.pop(rank), median(own.values())
    return slow / typical - 1 if slow > max(own.values()) and typical > 0 else None


def _is_significant(excesses: Sequence[float | None], min_excess: float) -> bool:
    """Whether a rank with these excesses, one per round or None, is slower by ``min_excess`` and not by chance."""
    observed = drop_none(excesses)
    if len(observed) < len(excesses):
        return False
    if len(observed) < MIN_VALUES_FOR_INTERVAL:
        return min(observed) >= min_excess
    ratios = [log1p(excess) for excess in observed]  # logs of ratios are symmetric: one round with fast other ranks does not widen them
    return fmean(observed) >= min_excess and t_interval(ratios, 1 - 2 * SIGNIFICANCE_LEVEL).low > 0


def _slow_in(slow: RankRow, others: Sequence[RankRow], device: str) -> StragglerKind:
    more_ms: dict[StragglerKind, float] = {
        "data": slow.data_wait_ms - median(row.data_wait_ms for row in others),
        "host-to-device": slow.phases_ms["host_to_device"] - median(row.phases_ms["host_to_device"] for row in others),
        "compute": slow.compute_ms - median(row.compute_ms for row in others),
        "host": slow.unexplained_ms - median(row.unexplained_ms for row in others),
    }
    kind = max(more_ms, key=more_ms.__getitem__)
    if kind != "compute":
        return kind
    is_host_fault = _is_issued_late if device == "cuda" else _is_descheduled
    return "clock" if _is_clocked_down(slow, others) else "host" if is_host_fault(slow, others, more_ms["compute"]) else "compute"


def _is_issued_late(slow: RankRow, others: Sequence[RankRow], more_ms: float) -> bool:
    others_ms = drop_none(row.host_issue_ms for row in others)
    return slow.host_issue_ms is not None and bool(others_ms) and slow.host_issue_ms - median(others_ms) >= HOST_FAULT_FRACTION * more_ms


def _is_descheduled(slow: RankRow, others: Sequence[RankRow], more_ms: float) -> bool:
    others_ms = drop_none(row.thread_cpu_ms for row in others)
    return (
        slow.thread_cpu_ms is not None and bool(others_ms) and slow.thread_cpu_ms - median(others_ms) <= (1 - HOST_FAULT_FRACTION) * more_ms
    )


def _is_clocked_down(slow: RankRow, others: Sequence[RankRow]) -> bool:
    if slow.throttle_reasons & SERIOUS_THROTTLE_REASONS:
        return True
    clocks = drop_none(row.sm_mhz for row in others)
    return slow.sm_mhz is not None and bool(clocks) and slow.sm_mhz < LOW_CLOCK_FRACTION * fmean(clocks)


def was_throttled(trace: Trace) -> bool:
    """Whether the rank's GPU was throttled in the round, other than by a software power cap."""
    return trace.health is not None and bool(SERIOUS_THROTTLE_REASONS & set(trace.health.throttle_reasons))
