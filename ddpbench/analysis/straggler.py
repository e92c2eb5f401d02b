"""Is one rank slow, by its own time, and why. All-reduce makes all step times equal, so a step time tells nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from ddpbench.analysis.ranks import RankRow, known, own_ms
from ddpbench.record.record import Record, Round

LEAST_EXCESS = 0.05
"""A rank is slow from this fraction over the median own time of the others."""

LOWER_CLOCK = 0.97
"""A slow rank whose SM clock is below this fraction of the others' is slow by its clock."""

THROTTLING = frozenset({"hw-slowdown", "hw-thermal", "sw-thermal", "hw-power-brake"})
"""Reasons that tell of a GPU in trouble; a software power cap is how many GPUs run all day."""

Kind = Literal["data", "host to device", "compute", "clock", "host"]


@dataclass(frozen=True)
class StragglerNote:
    """The one slow rank."""

    rank: int
    host: str
    device_index: int
    kind: Kind  # where its extra own time is spent; "host" is the part that no phase holds
    excess: float  # own time over the median of the others, a fraction: 0.2 is 20% more
    rounds: int  # it was the slowest in every one of them
    lost_ms: float  # a step, against the next slowest rank: what the job would gain without this one
    cost_images_per_s: float  # the same, as throughput of all ranks


def find_straggler(record: Record, rows: Sequence[RankRow]) -> StragglerNote | None:
    """The rank that was the slowest of every round by its own time, or None.

    Its excess over the median of the others must reach ``LEAST_EXCESS`` in each round, and it must be further from the next
    slowest than the others are apart. ``rows`` are those of ``rank_rows``. Needs two ranks and two rounds.
    """
    if len(rows) < 2 or len(record.rounds) < 2:
        return None
    slow, *others = rows
    if not all(_stands_out(slow.rank, timed) for timed in record.rounds):
        return None
    typical_ms = median(row.own_ms for row in others)
    spread_ms = max(row.own_ms for row in others) - min(row.own_ms for row in others)
    lost_ms = slow.own_ms - others[0].own_ms
    if lost_ms <= spread_ms:
        return None
    images_per_ms = sum(timed.images for timed in record.rounds) / sum(1000 * timed.wall_s for timed in record.rounds)
    return StragglerNote(
        rank=slow.rank,
        host=slow.host,
        device_index=slow.device_index,
        kind=_kind(slow, others),
        excess=slow.own_ms / typical_ms - 1,
        rounds=len(record.rounds),
        lost_ms=lost_ms,
        cost_images_per_s=1000 * images_per_ms * lost_ms / (slow.step_ms - lost_ms),
    )


def _stands_out(rank: int, timed: Round) -> bool:
    own = {trace.rank: own_ms(trace) for trace in timed.traces}
    slow = own.pop(rank)
    return slow > max(own.values()) and slow >= (1 + LEAST_EXCESS) * median(own.values())


def _kind(slow: RankRow, others: Sequence[RankRow]) -> Kind:
    more_ms: dict[Kind, float] = {
        "data": slow.data_ms - median(row.data_ms for row in others),
        "host to device": slow.phases_ms["host_to_device"] - median(row.phases_ms["host_to_device"] for row in others),
        "compute": slow.compute_ms - median(row.compute_ms for row in others),
        "host": slow.other_ms - median(row.other_ms for row in others),
    }
    kind = max(more_ms, key=more_ms.__getitem__)
    return "clock" if kind == "compute" and _clocked_down(slow, others) else kind


def _clocked_down(slow: RankRow, others: Sequence[RankRow]) -> bool:
    if slow.throttle_reasons & THROTTLING:
        return True
    clocks = known(row.sm_mhz for row in others)
    return slow.sm_mhz is not None and bool(clocks) and slow.sm_mhz < LOWER_CLOCK * fmean(clocks)
