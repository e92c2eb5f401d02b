"""All-reduce of a step: its size, its bus bandwidth, and how much backward hides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median

from ddpbench.analysis.scaling.runs import ScalingRuns, step_means_by_round
from ddpbench.analysis.stats import trimmed_mean
from ddpbench.record.record import Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.scaling import CommKernel, Overlap, bus_bandwidth

HALVING_COMM_HOOKS = ("fp16", "bf16")
"""Communication hooks that halve the bytes of float32 gradients."""


@dataclass(frozen=True)
class AllReduceStats:
    """DDP's buckets against the links.

    Rates are bytes/s; a figure is None if its arm is missing.
    """

    bucket_bytes: list[int]  # on the wire, in the order of their all-reduces
    allreduce_only_ms: float | None  # of all buckets, without training
    busbw: float | None  # of all buckets, without training
    max_busbw: float | None  # the highest over all measured sizes
    exposed_over_single_rank_ms: float | None  # all-reduce that backward does not hide, by the clock
    comm_cost_by_arms_ms: float | None  # total cost of other ranks per step, from the no_sync() arm
    comm_cost_by_timers_ms: float | None  # the same, from how long ranks wait and how much more slowly they compute
    profiled_hidden_fraction: float | None  # fraction that backward hides, by the profiler

    @property
    def total_bytes(self) -> int:
        return sum(self.bucket_bytes)

    @property
    def hidden_fraction(self) -> float | None:
        """Fraction of ``allreduce_only_ms`` that overlaps with backward; None if unknown."""
        if not self.allreduce_only_ms or self.exposed_over_single_rank_ms is None:
            return None
        return min(1.0, max(0.0, 1 - self.exposed_over_single_rank_ms / self.allreduce_only_ms))


def allreduce_stats(runs: ScalingRuns) -> AllReduceStats | None:
    """Return the all-reduce figures; None if DDP's buckets were not recorded."""
    if not runs.scaling.bucket_bytes:
        return None
    full, allreduce_only, overlap = runs.full_world, runs.allreduce_only, runs.scaling.overlap
    buckets = [size // _wire_divisor(full) for size in runs.scaling.bucket_bytes]
    allreduce_ms = median(1000 * timed.wall_s / timed.traces[0].steps for timed in allreduce_only.rounds) if allreduce_only else None
    profiled_hidden_fraction = 1 - overlap.exposed_ms / overlap.communication_ms if overlap and overlap.communication_ms else None
    return AllReduceStats(
        bucket_bytes=buckets,
        allreduce_only_ms=allreduce_ms,
        busbw=bus_bandwidth(sum(buckets), allreduce_ms / 1000, runs.world_size) if allreduce_ms else None,
        max_busbw=max(runs.scaling.allreduce_busbw.values(), default=None),
        exposed_over_single_rank_ms=_exposed_over_single_rank_ms(full, runs.single_shard_batch),
        comm_cost_by_arms_ms=_comm_cost_by_arms_ms(runs),
        comm_cost_by_timers_ms=_comm_cost_by_timers_ms(runs),
        profiled_hidden_fraction=profiled_hidden_fraction,
    )


def _exposed_over_single_rank_ms(full: Record | None, base: Record | None) -> float | None:
    """Exposed all-reduce per step of all ranks over that of one rank, in ms.

    One rank sends nothing: what DDP takes there between the last gradient and the update is no communication.
    """
    if full is None or base is None:
        return None
    full_ms, base_ms = (trimmed_mean([step.exposed_allreduce_ms for step in step_means_by_round(each).values()]) for each in (full, base))
    return full_ms - base_ms


def _comm_cost_by_arms_ms(runs: ScalingRuns) -> float | None:
    """Step time in DDP minus that under no_sync().

    Subtracts DDP minus no DDP on one rank, where DDP also copies gradients and broadcasts buffers.
    """
    return _mean_over_shared_rounds(
        lambda full, no_sync, one, no_ddp: full.wall_ms - no_sync.wall_ms - (one.wall_ms - no_ddp.wall_ms),
        [runs.full_world, runs.no_sync, runs.single_shard_batch, runs.single_no_ddp],
    )


def _comm_cost_by_timers_ms(runs: ScalingRuns) -> float | None:
    """How much longer ranks wait and compute in DDP than independently, beyond the same on one rank."""
    return _mean_over_shared_rounds(
        lambda full, independent, one, no_ddp: (
            full.busy_ms + full.wait_ms - full.peer_data_wait_ms - independent.busy_ms - (one.busy_ms + one.wait_ms - no_ddp.busy_ms)
        ),
        [runs.full_world, runs.independent, runs.single_shard_batch, runs.single_no_ddp],
    )


def _mean_over_shared_rounds(of_steps: Callable[..., float], records: Sequence[Record | None]) -> float | None:
    """Trimmed mean over the rounds that all ``records`` share; None without such a round."""
    by_round = [step_means_by_round(record) for record in records if record]
    if len(by_round) < len(records):
        return None
    shared = set.intersection(*(set(steps) for steps in by_round))
    return trimmed_mean([of_steps(*(steps[index] for steps in by_round)) for index in shared]) if shared else None


def _wire_divisor(full: Record | None) -> int:
    if full is None or full.config.comm_hook not in HALVING_COMM_HOOKS:
        return 1
    return 2 if PRECISIONS[full.config.precision].model_dtype == "float32" else 1


def measure_overlap(ranks: Sequence[Sequence[CommKernel]], steps: int) -> Overlap | None:
    """Measure how much of the all-reduce kernels no other kernel hides.

    Each kernel counts where it was shortest: that rank started it last and did not wait. ``ranks`` holds, per rank, the kernels of the
    same ``steps`` steps in order. None if their numbers differ or are zero.
    """
    if len({len(kernels) for kernels in ranks}) != 1 or not ranks[0]:
        return None
    shortest = [min(ranks_kernels, key=lambda kernel: kernel.duration_ms) for ranks_kernels in zip(*ranks, strict=True)]
    return Overlap(
        communication_ms=fsum(each.duration_ms for each in shortest) / steps, exposed_ms=fsum(each.exposed_ms for each in shortest) / steps
    )
