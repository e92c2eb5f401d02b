"""The words that limits, causes and cures share."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.record.environment import Environment
from ddpbench.record.record import Record


def device_word(environment: Environment) -> str:
    """What a rank trains on: ``GPU``, or ``rank`` on processors."""
    return "GPU" if environment.device_type == "cuda" else "rank"


def who(record: Record, verb: str) -> str:
    """``the GPUs wait``, ``the GPU waits``, ``the ranks wait``."""
    on = device_word(record.environment)
    return f"the {on} {verb}s" if record.world_size == 1 else f"the {on}s {verb}"


def trimmed(value: float) -> str:
    """Three significant digits as a sentence has them, without zeros at their end: ``3``, where a table has ``3.00``."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def count(number: float, noun: str, plural: str = "s") -> str:
    """``1 round``, ``1,024 rounds``, ``2.5 cores``."""
    told = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{told} {noun}{'' if number == 1 else plural}"


def rounds_of(records: Sequence[Record]) -> str:
    """``3 of 5 rounds``, of all ``records`` together."""
    return f"{sum(len(record.rounds) for record in records):,} of {sum(record.config.rounds for record in records):,} rounds"
