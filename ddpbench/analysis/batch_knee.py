"""The knee of throughput over batch size: the smallest batch that trains almost as fast as the fastest."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.compare import comparable_estimate, same_devices
from ddpbench.record.record import Job, Record

KNEE_FRACTION = 0.95
"""Fraction of the highest throughput that counts as almost as fast."""


@dataclass(frozen=True)
class BatchKnee:
    """The smallest of the measured batches that reaches KNEE_FRACTION of the fastest."""

    knee: Record
    fastest: Record
    fraction: float  # of the throughput of the fastest that the knee reaches
    is_reached: bool  # whether a larger batch than the knee was measured, and so more would gain little


def find_batch_knee(job: Job) -> BatchKnee | None:
    """The knee of a job whose arms differ in batch size only; None with fewer than two measured arms."""
    throughput = {
        record.config.batch_size: (estimate.samples_per_s, record)
        for record in job.records
        if (estimate := comparable_estimate(record)) and same_devices(record, job.records[0])
    }
    if job.swept != ["batch_size"] or len(throughput) < 2:
        return None
    highest, fastest = max(throughput.values(), key=lambda measured: measured[0])
    batch = min(batch for batch, (reached, _) in throughput.items() if reached >= KNEE_FRACTION * highest)
    reached, knee = throughput[batch]
    return BatchKnee(knee, fastest, reached / highest, is_reached=batch < max(throughput))
