"""The all-reduce of a step: its size, its bus bandwidth, and what backward hides."""

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
"""Communication hooks that send float32 gradients with half their bytes."""


@dataclass(frozen=True)
class AllReduceStats:
    """What DDP's buckets mean for the links. Rates are bytes/s; None where the arm for it is missing."""

    bucket_bytes: list[int]  # bytes on the wire, in the order of their all-reduces
    allreduce_only_ms: float | None  # for all of them, with nobody training
    busbw: float | None  # bus bandwidth of them
    max_busbw: float | None  # the most that any size of all-reduce reached
    exposed_ms: float | None  # of them, what a step waits for, by the clock
    comm_cost_by_arms_ms: float | None  # what other ranks cost a step in all, by the turns in which nothing is sent
    comm_cost_by_timers_ms: float | None  # the same, by what ranks wait and by how much more slowly they compute
    profiled_hidden_fraction: float | None  # the share hidden, by the profiler

    @property
    def total_bytes(self) -> int:
        return sum(self.bucket_bytes)

    @property
    def hidden_fraction(self) -> float | None:
        """The share of ``alone_ms`` that runs beside the backward."""
        if not self.allreduce_only_ms or self.exposed_ms is None:
            return None
        return min(1.0, max(0.0, 1 - self.exposed_ms / self.allreduce_only_ms))


def allreduce_stats(runs: ScalingRuns) -> AllReduceStats | None:
    """None where DDP's buckets were never seen."""
    if not runs.scaling.bucket_bytes:
        return None
    full, communication, overlap = runs.full_world, runs.allreduce_only, runs.scaling.overlap
    buckets = [size // _wire_divisor(full) for size in runs.scaling.bucket_bytes]
    alone_ms = median(1000 * timed.wall_s / timed.traces[0].steps for timed in communication.rounds) if communication else None
    seen = 1 - overlap.exposed_ms / overlap.communication_ms if overlap and overlap.communication_ms else None
    return AllReduceStats(
        bucket_bytes=buckets,
        allreduce_only_ms=alone_ms,
        busbw=bus_bandwidth(sum(buckets), alone_ms / 1000, runs.world_size) if alone_ms else None,
        max_busbw=max(runs.scaling.allreduce_busbw.values(), default=None),
        exposed_ms=_exposed_allreduce_ms(full, runs.single_shard_batch),
        comm_cost_by_arms_ms=_comm_cost_by_arms_ms(runs),
        comm_cost_by_timers_ms=_comm_cost_by_timers_ms(runs),
        profiled_hidden_fraction=seen,
    )


def _exposed_allreduce_ms(full: Record | None, base: Record | None) -> float | None:
    """More than DDP takes between the last gradient and the update on one rank, which sends nothing."""
    if full is None or base is None:
        return None
    with_others, by_itself = (
        trimmed_mean([step.exposed_allreduce_ms for step in step_means_by_round(each).values()]) for each in (full, base)
    )
    return with_others - by_itself


def _comm_cost_by_arms_ms(runs: ScalingRuns) -> float | None:
    """DDP less DDP that sends nothing, as far as it is more than on one rank: there, too, it copies gradients and broadcasts buffers."""
    return _mean_over_shared_rounds(
        lambda full, no_sync, one, no_ddp: full.wall_ms - no_sync.wall_ms - (one.wall_ms - no_ddp.wall_ms),
        [runs.full_world, runs.no_sync, runs.single_shard_batch, runs.single_no_ddp],
    )


def _comm_cost_by_timers_ms(runs: ScalingRuns) -> float | None:
    """What ranks wait and compute longer in DDP than each for itself, as far as it is more than on one rank."""
    return _mean_over_shared_rounds(
        lambda full, independent, one, no_ddp: (
            full.busy_ms + full.wait_ms - full.peer_data_wait_ms - independent.busy_ms - (one.busy_ms + one.wait_ms - no_ddp.busy_ms)
        ),
        [runs.full_world, runs.independent, runs.single_shard_batch, runs.single_no_ddp],
    )


def _mean_over_shared_rounds(of_steps: Callable[..., float], records: Sequence[Record | None]) -> float | None:
    """That of the rounds that all ``records`` have; None where there is none."""
    there = [step_means_by_round(record) for record in records if record]
    if len(there) < len(records):
        return None
    shared = set.intersection(*(set(steps) for steps in there))
    return trimmed_mean([of_steps(*(steps[index] for steps in there)) for index in shared]) if shared else None


def _wire_divisor(full: Record | None) -> int:
    if full is None or full.config.comm_hook not in HALVING_COMM_HOOKS:
        return 1
    return 2 if PRECISIONS[full.config.precision].model_dtype == "float32" else 1


def measure_overlap(ranks: Sequence[Sequence[CommKernel]], steps: int) -> Overlap | None:
    """Each kernel as it was where it was shortest: that rank began it last, and waited for nobody.

    ``ranks`` hold the same kernels of so many steps, in order. None where they do not, or hold none.
    """
    if len({len(kernels) for kernels in ranks}) != 1 or not ranks[0]:
        return None
    sent = [min(same, key=lambda kernel: kernel.duration_ms) for same in zip(*ranks, strict=True)]
    return Overlap(
        communication_ms=fsum(each.duration_ms for each in sent) / steps, exposed_ms=fsum(each.exposed_ms for each in sent) / steps
    )
