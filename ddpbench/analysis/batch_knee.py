"""The knee of throughput over batch size: the smallest batch that trains almost as fast as the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpbench.analysis.fastest import BestArm
from ddpbench.record.record import Record

KNEE_FRACTION = 0.95
"""Fraction of the highest throughput that counts as almost as fast."""


@dataclass(frozen=True)
class BatchKnee:
    """The smallest of the measured batches that reaches KNEE_FRACTION of the fastest."""

    batch_size: int
    fraction: float  # of the throughput of the fastest that it reaches
    is_reached: bool  # whether a larger batch than the knee was measured, and so more would gain little


def find_batch_knee(found: BestArm, swept: Sequence[str]) -> BatchKnee | None:
    """The knee of arms that differ in batch size only."""
    if [*swept] != ["batch_size"]:
        return None
    throughput = {record.config.batch_size: _samples_per_s(record) for record in found.candidates}
    highest = _samples_per_s(found.best)
    batch_size = min(batch for batch, reached in throughput.items() if reached >= KNEE_FRACTION * highest)
    return BatchKnee(batch_size, throughput[batch_size] / highest, is_reached=batch_size < max(throughput))


def _samples_per_s(record: Record) -> float:
    assert record.throughput is not None, "candidates have a figure"
    return record.throughput.samples_per_s
