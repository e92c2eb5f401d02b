"""Roles of arms: what a training of a job is for, and why some measurements were skipped."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.prediction import Scenario
from ddpbench.record.private import EntryName, FreeText
from ddpbench.record.ranges import AtLeastOne

RoleKind = Literal[
    "run",  # an ordinary arm, identified by its Config
    "side",  # one side of a comparison: a device, an environment
    "earlier_model_alive",  # the model of an earlier run is still on the device
    "baseline",  # of a diagnosis: the requested configuration
    "compute_only",  # batches are already on the device
    "independent",  # the same, and every rank trains for itself: no DDP, no gradient sync
    "replay",  # real batches in pinned host memory, copied every step
    "loader_in_background",  # batches are on the device, while the loader runs and its batches are discarded
    "baseline_repeat",  # the baseline again, interleaved with trials of remedies
    "trial",  # a remedy
    "ddp",  # of a scaling job: DDP on the first ranks
    "single_no_ddp",  # the bare model on the first rank, with the batch that a rank of the full world has
    "single_shard_batch",  # DDP with a world size of 1 and that batch (strong scaling only)
    "no_sync",  # all ranks in DDP's no_sync(): its hooks run, but no gradients are sent
    "allreduce_only",  # only all-reduces of DDP's buckets, one after another
    "with_data",  # DDP on real batches
]


class Role(msgspec.Struct, frozen=True):
    """What an arm is for. Arms of one job with equal Configs differ in their roles."""

    kind: RoleKind = "run"
    side: str = ""  # name of the side: "CPU, 16 threads"
    ranks: AtLeastOne | None = None  # of kind "ddp"
    scenario: Scenario | None = None  # of kind "trial": what the remedy changes


RUN = Role()
EARLIER_MODEL_ALIVE = Role("earlier_model_alive")
BASELINE, COMPUTE_ONLY, INDEPENDENT, REPLAY = Role("baseline"), Role("compute_only"), Role("independent"), Role("replay")
LOADER_IN_BACKGROUND, BASELINE_REPEAT = Role("loader_in_background"), Role("baseline_repeat")
SINGLE_NO_DDP, SINGLE_SHARD_BATCH = Role("single_no_ddp"), Role("single_shard_batch")
NO_SYNC, ALLREDUCE_ONLY, WITH_DATA = Role("no_sync"), Role("allreduce_only"), Role("with_data")


def ddp_role(ranks: int) -> Role:
    """Role of DDP on the first ``ranks`` ranks."""
    return Role("ddp", ranks=ranks)


def trial_role(scenario: Scenario) -> Role:
    """Role of the trial of ``scenario``."""
    return Role("trial", scenario=scenario)


def side_role(name: str) -> Role:
    """Role of the side ``name`` of a comparison."""
    return Role("side", side=name)


Measurement = Literal[
    "node_states",
    "loader_benchmarks",
    "single_rank_loader_benchmark",
    "all_cores_loader_benchmarks",
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
    "user_defined_loader",
    "no_image_folder",
    "no_other_loader",
    "synthetic_data",
    "failed",
]


class SkippedMeasurement(msgspec.Struct, frozen=True):
    """An arm or another measurement that was skipped."""

    what: Role | Measurement
    reason: SkipReason
    loader: EntryName = ""  # the loader that is the reason, or whose batches are
    error: FreeText = ""  # message of the error, if it failed
