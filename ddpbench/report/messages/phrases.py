"""Phrases that several messages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpbench.analysis.cpu_demand import trainer_threads
from ddpbench.record.environment import Environment
from ddpbench.record.record import Record
from ddpbench.record.text import pluralize

SLOWER_ALONE = "slower than in training, which has the same workers: its benchmark was disturbed, or read files that were not cached yet"

MIN_SLOWER_ALONE = 0.95
"""Below this fraction of what a training received, the rate of its loader alone is doubtful."""


def is_slower_alone(alone_samples_per_s: float, training_samples_per_s: float) -> bool:
    """Whether a loader was slower without training than with it: SLOWER_ALONE says what that means."""
    return alone_samples_per_s < MIN_SLOWER_ALONE * training_samples_per_s


def device_noun(environment: Environment) -> str:
    """What a rank trains on: ``GPU``, or ``rank`` on CPU."""
    return "GPU" if environment.device_type == "cuda" else "rank"


def device_clause(record: Record, verb: str) -> str:
    """``the GPUs wait``, ``the GPU waits``, ``the ranks wait``."""
    on = device_noun(record.environment)
    return f"the {on} {verb}s" if record.world_size == 1 else f"the {on}s {verb}"


def format_rounds(records: Sequence[Record]) -> str:
    """``3 of 5 rounds``, summed over ``records``; ``3 rounds`` of a watched script, which has no requested number."""
    if records[0].script is not None:
        return pluralize(len(records[0].rounds), "round")
    return f"{sum(len(record.rounds) for record in records):,} of {sum(record.config.rounds for record in records):,} rounds"


def format_ranks(record: Record, ranks: Sequence[int]) -> str:
    """``rank 2 (node-01)``, or ``4 ranks`` for several."""
    if len(ranks) > 1:
        return f"{len(ranks)} ranks"
    return next(f"rank {place.rank} ({place.host})" for place in record.environment.placements if place.rank == ranks[0])


def format_starved_ranks(record: Record, cores_by_rank: Mapping[int, float]) -> str:
    """``rank 0 (node-01) got 0.62 of 1 core``, ``2 ranks got 1.20 to 1.31 of 4 cores each``."""
    threads = trainer_threads(record)
    least, most = f"{min(cores_by_rank.values()):.2f}", f"{max(cores_by_rank.values()):.2f}"
    cores = (least if least == most else f"{least} to {most}") + (f" of {pluralize(threads, 'core')}")
    return f"{format_ranks(record, sorted(cores_by_rank))} got {cores}" + (" each" if len(cores_by_rank) > 1 else "")
