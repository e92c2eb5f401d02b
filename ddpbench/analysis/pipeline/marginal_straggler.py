"""Whether the rank that gets its data last has a slower loader, or is only the last of ranks whose loaders are all as slow.

Ranks meet at every step. Where all loaders are too slow, the one that is so by a hair is waited for by the others, and while these
wait their own next batches get ready: all of the wait for data is then seen on that one rank.
"""

from __future__ import annotations

from math import sqrt
from statistics import median

from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.pipeline.costs import loader_cost
from ddpbench.analysis.pipeline.model import pipeline_model
from ddpbench.analysis.straggler import MIN_EXCESS_FRACTION

MAX_HANDOFF_FRACTION = 0.5


def is_marginal_straggler(inputs: AnalysisInput, rank: int) -> bool:
    """Whether a loader as fast as the other ranks' would be the smaller part of what ``rank`` lacks; False where that is not known."""
    times, given = _loader_time_ratio(inputs, rank), pipeline_model(inputs)
    if times is None or (given.handoff_fraction or 0.0) >= MAX_HANDOFF_FRACTION:
        return False
    return times < max(1 + MIN_EXCESS_FRACTION[inputs.record.environment.device_type], sqrt(given.device_rate / given.achieved_rate))


def _loader_time_ratio(inputs: AnalysisInput, rank: int) -> float | None:
    """How many times as long as on the other ranks an image takes in the workers of this one; else with nobody training."""
    costs = {each: loader_cost(trace.loader_stats for trace in traces) for each, traces in inputs.record.traces_by_rank.items()}
    seconds = {each: cost.wall_s for each, cost in costs.items() if cost}
    if len(seconds) < len(costs) and inputs.controls.diagnosis:
        seconds = {each.rank: 1 / each.images_per_s for each in inputs.controls.diagnosis.loader_benchmarks if each.images}
    others = [span for each, span in seconds.items() if each != rank]
    return seconds[rank] / median(others) if others and rank in seconds else None
