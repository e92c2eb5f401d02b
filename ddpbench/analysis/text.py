"""Phrases that bottlenecks, causes and remedies share."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.record.environment import Environment
from ddpbench.record.record import Record


def device_noun(environment: Environment) -> str:
    """What a rank trains on: ``GPU``, or ``rank`` on CPU."""
    return "GPU" if environment.device_type == "cuda" else "rank"


def device_clause(record: Record, verb: str) -> str:
    """``the GPUs wait``, ``the GPU waits``, ``the ranks wait``."""
    on = device_noun(record.environment)
    return f"the {on} {verb}s" if record.world_size == 1 else f"the {on}s {verb}"


def format_rounds(records: Sequence[Record]) -> str:
    """``3 of 5 rounds``, summed over ``records``."""
    return f"{sum(len(record.rounds) for record in records):,} of {sum(record.config.rounds for record in records):,} rounds"
