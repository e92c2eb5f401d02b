"""How long the workers of a loader take for its batches, and what that costs the cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

from ddpbench.analysis.pipeline.costs import cost_of
from ddpbench.analysis.whatif.assumptions import Assumption
from ddpbench.record.diagnosis import Alone
from ddpbench.record.loader_stats import Loading

ENOUGH = 8
"""Batches of a rank from which on their own spread is known."""

Rounds = Sequence[Sequence[Sequence[float]]]
"""Round, rank, batch: seconds in a worker that always has a core."""

ALIKE = Assumption("nobody told how long single batches take: all as long as their mean", 0.05)


@dataclass(frozen=True)
class Batches:
    """``reading`` is the share of a batch's time in which its worker waits for a file; None where that was not told apart."""

    rounds: Rounds
    reading: float | None
    assumed: tuple[Assumption, ...] = ()


def of_workers(told: Sequence[Sequence[Loading]], batch: int) -> Batches | None:
    """Of worker processes, from what they told in each round, rank by rank; None where they told no times."""
    cost = cost_of(loading for each in told for loading in each)
    if cost is None:
        return None
    free = cost.wall_with_a_core_s() / cost.wall_s
    reading = cost.read_wait_s / cost.wall_with_a_core_s() if "read" in cost.wall else None
    rounds = [[[free * span / 1000 for span in loading.batch_ms] for loading in each] for each in told]
    if min(fsum(len(each[rank]) for each in rounds) for rank in range(len(told[0]))) >= ENOUGH:
        return Batches([each for each in rounds if all(each)], reading)
    even = [[[batch * (cost_of([loading]) or cost).wall_with_a_core_s()] for loading in each] for each in told]
    return Batches(even, reading, (ALIKE,))


def of_turns(alone: Sequence[Alone], makers: int) -> Batches:
    """Of so many ``makers`` that take turns and tell no times: from one's batch to its next is a turn, here with nobody training."""
    return Batches([[_turns(each.intervals_ms, max(1, makers)) for each in alone]], None)


def _turns(intervals_ms: Sequence[float], makers: int) -> list[float]:
    """Seconds of the turns that end with each batch; of a single turn that was not seen to its end, as of those that were in it."""
    seen = min(makers, len(intervals_ms))
    return [makers * fmean(intervals_ms[end - seen : end]) / 1000 for end in range(seen, len(intervals_ms) + 1)]


def image_cpu_s(alone: Sequence[Alone]) -> float:
    """Seconds of a core that an image takes outside of the trainer's own thread."""
    cost = cost_of(each.loading for each in alone)
    return cost.cpu_s if cost else fmean(each.cpu_s / each.images for each in alone)


def handing_s(alone: Sequence[Alone]) -> float:
    """Seconds of a core that handing an image over takes: the trainer's, and what its worker takes beside the stages."""
    cost = cost_of(each.loading for each in alone)
    beside = fmean(each.cpu_s / each.images for each in alone) - cost.cpu_s if cost else 0.0
    return fmean(each.main_cpu_s / each.images for each in alone) + max(0.0, beside)


def scaled(rounds: Rounds, factor: float) -> Rounds:
    return [[[factor * span for span in rank] for rank in each] for each in rounds]
