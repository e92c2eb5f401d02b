"""Is one rank slow, by its own time, and why. All-reduce makes all step times equal, so a step time tells nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from ddpbench.analysis.evidence import LEAST_FOR_AN_INTERVAL
from ddpbench.analysis.ranks import RankRow, known, own_ms
from ddpbench.analysis.stats import t_interval
from ddpbench.record.record import Record, Round
from ddpbench.record.trace import PHASES, WAITS_FOR_OTHERS, Trace

LEAST_EXCESS = {"cuda": 0.025, "cpu": 0.05}
"""A rank is slow from this fraction over the median own time of the others. Healthy H200s of one node differ by up to 0.6%, the same way
in every round; cores by more.
"""

CHANCE = 0.01
"""The one that happens to be slowest is told from a slow rank by a t-test of its excess over the rounds, at this level."""

HELD = 0.5
"""Computing that takes longer is the host's fault where this fraction of the extra time is, at least: the work of a GPU was still being
issued, in its median step, or the thread of a rank on a processor was off its core.
"""

LOWER_CLOCK = 0.97
"""A slow rank whose SM clock is below this fraction of the others' is slow by its clock."""

THROTTLING = frozenset({"hw-slowdown", "hw-thermal", "sw-thermal", "hw-power-brake"})
"""Reasons that tell of a GPU in trouble; a software power cap is how many GPUs run all day."""

Kind = Literal["data", "host to device", "compute", "clock", "host"]


@dataclass(frozen=True)
class StragglerNote:
    """The one slow rank, the slowest of every round."""

    rank: int
    host: str
    device_index: int
    kind: Kind  # where its extra own time is spent; "host" where its host keeps its device, or the machine its process, from computing
    excess: float  # own time over the median of the others, a fraction: 0.2 is 20% more; of the median step where the mean is not slow
    lost_ms: float  # a step, against the next slowest rank: what the job would gain without this one
    cost_images_per_s: float  # the same, as throughput of all ranks
    costs: bool  # that much, that it is what holds the others up: pauses of theirs may take as long as what it is slower by


def find_straggler(record: Record, rows: Sequence[RankRow]) -> StragglerNote | None:
    """The rank that was the slowest of every round by its own time, or None.

    Its excess over the median of the others must reach ``LEAST_EXCESS``, and be no chance (of two rounds in both): by the mean of
    its steps or by their median. And it must be further from the next slowest than the others are apart. ``rows`` are those of
    ``rank_rows``. Needs two ranks and two rounds.
    """
    if len(rows) < 2 or len(record.rounds) < 2:
        return None
    slow, *others = rows
    least = LEAST_EXCESS[record.environment.device_type]
    excesses = {own: [_excess(slow.rank, timed, own) for timed in record.rounds] for own in (own_ms, usual_own_ms)}
    slow_by = next((own for own, each in excesses.items() if _stands_out(each, least)), None)
    if slow_by is None:
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
        kind=_kind(slow, others, record.environment.device_type),
        excess=slow.own_ms / typical_ms - 1 if slow_by is own_ms else fmean(known(excesses[slow_by])),
        lost_ms=lost_ms,
        cost_images_per_s=1000 * images_per_ms * lost_ms / (slow.step_ms - lost_ms),
        costs=slow_by is own_ms or lost_ms >= least * typical_ms,
    )


def suspect(record: Record, rows: Sequence[RankRow]) -> int | None:
    """The rank that is slowest on average by ``LEAST_EXCESS`` or more: a straggler, or slow by chance."""
    if len(rows) < 2:
        return None
    slow, *others = rows
    excess = slow.own_ms / median(row.own_ms for row in others) - 1
    return slow.rank if excess >= LEAST_EXCESS[record.environment.device_type] else None


def usual_own_ms(trace: Trace) -> float:
    """A rank's own time of its median step: a pause now and then, which others on the machine are the reason of, leaves it as it is."""
    own_phases = [trace.phases_ms[phase] for phase in PHASES if phase not in WAITS_FOR_OTHERS]
    return median(map(sum, zip(*own_phases, strict=True)))


def _excess(rank: int, timed: Round, own_of: Callable[[Trace], float]) -> float | None:
    """Own time over the median of the others, a fraction; None where another rank was slower in that round."""
    own = {trace.rank: own_of(trace) for trace in timed.traces}
    slow = own.pop(rank)
    return slow / median(own.values()) - 1 if slow > max(own.values()) else None


def _stands_out(excesses: Sequence[float | None], least: float) -> bool:
    """Whether what is slower by these fractions, one a round and None where it was not the slowest, is so by ``least`` and no chance."""
    there = sorted({*known(excesses)})  # a resample repeats rounds, and a repeated round is no further observation
    if None in excesses:
        return False
    if len(there) < LEAST_FOR_AN_INTERVAL:
        return min(there) >= least
    return fmean(there) >= least and t_interval(there, 1 - 2 * CHANCE).low > 0


def _kind(slow: RankRow, others: Sequence[RankRow], device: str) -> Kind:
    more_ms: dict[Kind, float] = {
        "data": slow.data_ms - median(row.data_ms for row in others),
        "host to device": slow.phases_ms["host_to_device"] - median(row.phases_ms["host_to_device"] for row in others),
        "compute": slow.compute_ms - median(row.compute_ms for row in others),
        "host": slow.other_ms - median(row.other_ms for row in others),
    }
    kind = max(more_ms, key=more_ms.__getitem__)
    if kind != "compute":
        return kind
    held_up = _issued_late if device == "cuda" else _off_its_core
    return "clock" if _clocked_down(slow, others) else "host" if held_up(slow, others, more_ms["compute"]) else "compute"


def _issued_late(slow: RankRow, others: Sequence[RankRow], more_ms: float) -> bool:
    issuing = known(row.issuing_ms for row in others)
    return slow.issuing_ms is not None and bool(issuing) and slow.issuing_ms - median(issuing) >= HELD * more_ms


def _off_its_core(slow: RankRow, others: Sequence[RankRow], more_ms: float) -> bool:
    cpus = known(row.cpu_ms for row in others)
    return slow.cpu_ms is not None and bool(cpus) and slow.cpu_ms - median(cpus) <= (1 - HELD) * more_ms


def _clocked_down(slow: RankRow, others: Sequence[RankRow]) -> bool:
    if slow.throttle_reasons & THROTTLING:
        return True
    clocks = known(row.sm_mhz for row in others)
    return slow.sm_mhz is not None and bool(clocks) and slow.sm_mhz < LOWER_CLOCK * fmean(clocks)
