"""The rungs of a ladder: how fast so many ranks are, how much of one rank's speed they keep, and what they lose most to."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from ddpbench.analysis.checks.figure import MOST_VARIATION
from ddpbench.analysis.compare import figure, times_as_fast
from ddpbench.analysis.evidence import LEAST_ROUNDS, Reach, reach
from ddpbench.analysis.ranks import own_ms
from ddpbench.analysis.ratio import Ratio
from ddpbench.analysis.scaling.runs import Arms, step_of
from ddpbench.analysis.scaling.waterfall import ALL_REDUCE, STRAGGLER, Waterfall
from ddpbench.analysis.stats import log_steady_interval, steady_mean, variation
from ddpbench.analysis.summary import summarise
from ddpbench.record.record import Record
from ddpbench.record.text import count

MOST_EFFICIENCY = 1.02
"""More than this of N times one rank is no success: the one rank was slow."""

SLOWER = 0.97
"""A clock below this fraction of another's is a lower one."""

WORTH_A_NAME = 0.005
"""Of the ideal."""

SLOWER_RANKS = "slower ranks"
"""What a rung loses whose own losses were not taken apart: its ranks compute more slowly."""


@dataclass(frozen=True)
class Rung:
    """So many ranks. ``efficiency`` is a fraction, None where no round is shared with the first rung."""

    ranks: int
    images_per_s: float
    reach: Reach | None
    efficiency: Ratio | None
    lost_to: str  # empty where next to nothing is lost; of the last rung two, where the rounds do not tell which is more
    doubts: list[str]  # what is wrong with the baseline, where the efficiency is more than can be


def ladder(arms: Arms, way: Waterfall | None) -> list[Rung]:
    """The rungs that have a figure, the first first."""
    return [rung for ranks, record in sorted(arms.rungs.items()) if (rung := _rung(ranks, record, arms, way))]


def _rung(ranks: int, record: Record, arms: Arms, way: Waterfall | None) -> Rung | None:
    headline, one = figure(record), arms.one
    if headline is None:
        return None
    times = times_as_fast(record, one, log_steady_interval) if one else None
    efficiency = times and Ratio(times.center / ranks, times.low / ranks, times.high / ranks, times.pairs)
    doubts = doubts_of(arms, one, record) if efficiency and one and efficiency.center > MOST_EFFICIENCY else []
    lost_to = "" if one is None or one is record or doubts else _lost_to(record, one, arms, way)
    return Rung(ranks, headline.images_per_s, reach(record), efficiency, lost_to, doubts)


def _lost_to(record: Record, one: Record, arms: Arms, way: Waterfall | None) -> str:
    if record is arms.last and way:
        return " or ".join(term.name for term in way.greatest if term.lost > WORTH_A_NAME)
    base, own = ([step_of(timed) for timed in each.rounds] for each in (one, record))
    shared_by = record.world_size if arms.scaling.strong else 1
    ideal_ms = steady_mean([step.wall for step in base]) / shared_by
    lost_ms = {
        ALL_REDUCE: steady_mean([step.least_wait for step in own]) - steady_mean([step.wait for step in base]),
        STRAGGLER: steady_mean([step.wait - step.least_wait - step.late_data for step in own]),
        SLOWER_RANKS: steady_mean([step.busy for step in own]) - steady_mean([step.busy for step in base]) / shared_by,
    }
    worst_name = max(lost_ms, key=lambda name: lost_ms[name])
    return worst_name if lost_ms[worst_name] > WORTH_A_NAME * ideal_ms else ""


def doubts_of(arms: Arms, one: Record, many: Record) -> list[str]:
    """What may be wrong with one rank as the measure of ``many``: each thing that was seen, or that nothing was."""
    found = []
    spread = variation([timed.images_per_s for timed in one.rounds]) if len(one.rounds) > 1 else 0.0
    if spread > MOST_VARIATION:
        found.append(f"its rounds vary by {spread:.1%}")
    if len(one.rounds) < LEAST_ROUNDS:
        found.append(f"it has {count(len(one.rounds), 'round')}, and a figure needs {LEAST_ROUNDS}")
    found += [check.sentence for check in one.checks if check.name in ("throttled", "shared-gpu", "noisy-neighbour", "drift")]
    if clock := _lower_clock(one, many):
        found.append(clock)
    if slow := _slow_first(arms.apart):
        found.append(slow)
    if arms.scaling.strong and arms.share and arms.share.headline and one.headline:
        gain = arms.share.headline.images_per_s / one.headline.images_per_s - 1
        if gain > MOST_EFFICIENCY - 1:
            found.append(f"its whole batch runs {gain:.0%} slower an image than the share that a rank of {arms.ranks} has")
    return found or ["nothing that was measured tells why: measure again, with more --rounds"]


def _lower_clock(one: Record, many: Record) -> str:
    alone, together = (
        fmean(clocks) if (clocks := [row.sm_mhz for row in summarise(each).ranks if row.sm_mhz]) else None for each in (one, many)
    )
    if alone and together and alone < SLOWER * together:
        return f"its GPU ran at {alone:.0f} MHz, all of them at {together:.0f}"
    return ""


def _slow_first(apart: Record | None) -> str:
    """Rank 0, on which one rank trains, where it is slower than the others with every rank for itself."""
    if apart is None:
        return ""
    own = {rank: fmean(own_ms(timed.traces[rank]) for timed in apart.rounds) for rank in range(apart.world_size)}
    others = fmean(ms for rank, ms in own.items() if rank)
    return f"rank 0, on which it trains, is {own[0] / others - 1:.0%} slower than the others by itself" if own[0] * SLOWER > others else ""
