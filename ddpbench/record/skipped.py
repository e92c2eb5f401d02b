"""Measurements that were skipped, and why."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.roles import Role

Measurement = Literal[
    "node_states",
    "loader_benchmarks",
    "single_rank_loader_benchmark",
    "stage_cpu_s",
    "alternative_loaders",
    "storage",
    "h2d_bandwidth",
    "trials",
]
"""The measurements of a diagnosis besides its control runs: fields of Diagnosis, and the trials of remedies."""

SkipReason = Literal[
    "no_time_left",
    "trainer_loads",  # the trainer process itself loads its batches: nothing of the loader works in the background
    "batches_made_on_device",
    "cpu_ranks",
    "dataset_in_memory",
    "no_image_folder",
    "no_other_loader",
    "synthetic_data",
    "failed",
]


class SkippedMeasurement(msgspec.Struct, frozen=True):
    """An arm or another measurement that was skipped."""

    what: Role | Measurement
    reason: SkipReason
    loader: str = ""  # the loader that is the reason, or whose batches are
    error: str = ""  # message of the error, if it failed
