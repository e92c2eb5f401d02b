"""Whether the rank that gets its data last has a slower loader, or is only the last of ranks whose loaders are all as slow.

Ranks meet at every step. Where all loaders are too slow, the one that is so by a hair is waited for by the others, and while these
wait their own next batches get ready: all of the wait for data is then seen on that one rank.
"""

from __future__ import annotations

from math import sqrt
from statistics import median

from ddpbench.analysis.inputs import Case
from ddpbench.analysis.pipeline.costs import cost_of
from ddpbench.analysis.pipeline.model import supply
from ddpbench.analysis.straggler import LEAST_EXCESS

MOST = 0.5


def only_the_last(case: Case, rank: int) -> bool:
    """Whether a loader as fast as the other ranks' would be the smaller part of what ``rank`` lacks; False where that is not known."""
    times, given = _times_as_long(case, rank), supply(case)
    if times is None or (given.hand_over_share or 0.0) >= MOST:
        return False
    return times < max(1 + LEAST_EXCESS[case.record.environment.device_type], sqrt(given.device_rate / given.given_rate))


def _times_as_long(case: Case, rank: int) -> float | None:
    """How many times as long as on the other ranks an image takes in the workers of this one; else with nobody training."""
    costs = {each: cost_of(trace.loading for trace in traces) for each, traces in case.record.traces_by_rank.items()}
    seconds = {each: cost.wall_s for each, cost in costs.items() if cost}
    if len(seconds) < len(costs) and case.around.diagnosis:
        seconds = {each.rank: 1 / each.images_per_s for each in case.around.diagnosis.alone if each.images}
    others = [span for each, span in seconds.items() if each != rank]
    return seconds[rank] / median(others) if others and rank in seconds else None
