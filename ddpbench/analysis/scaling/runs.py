"""The arms of a scaling job by what they are for, and what their rounds say of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ddpbench.analysis.collective_wait import collective_waits
from ddpbench.analysis.ranks import own_ms
from ddpbench.record.record import Job, Record, Round
from ddpbench.record.scaling import (
    ALLREDUCE_ONLY,
    INDEPENDENT_RANKS,
    NO_SYNC,
    SINGLE_NO_DDP,
    SINGLE_SHARD_BATCH,
    WITH_DATA,
    Scaling,
    ddp_label,
)
from ddpbench.record.trace import COLLECTIVE_PHASES

INPUT_PHASES = ("data", "host_to_device")


@dataclass(frozen=True)
class ScalingRuns:
    """None where an arm has no round."""

    scaling: Scaling
    ddp_by_ranks: dict[int, Record]  # ranks -> DDP on so many
    single_shard_batch: Record | None  # one rank with the batch that a rank of the whole world has
    single_no_ddp: Record | None
    independent: Record | None
    no_sync: Record | None
    allreduce_only: Record | None
    with_data: Record | None

    @property
    def world_size(self) -> int:
        return self.scaling.world_sizes[-1]

    @property
    def single_rank(self) -> Record | None:
        return self.ddp_by_ranks.get(1)

    @property
    def full_world(self) -> Record | None:
        return self.ddp_by_ranks.get(self.world_size)

    @property
    def final(self) -> Record | None:
        """What the way down leads to: with data, where there are any."""
        return self.with_data or self.full_world

    def all_records(self) -> Iterator[Record]:
        yield from self.ddp_by_ranks.values()
        yield from (
            arm
            for arm in (self.single_shard_batch, self.single_no_ddp, self.independent, self.no_sync, self.allreduce_only, self.with_data)
            if arm
        )


def scaling_runs(job: Job) -> ScalingRuns | None:
    """The arms of ``job``; None for a job of another kind."""
    if job.scaling is None:
        return None
    by_label = {record.label: record for record in job.records if record.rounds and record.status != "invalid"}
    rungs = {ranks: record for ranks in job.scaling.world_sizes if (record := by_label.get(ddp_label(ranks)))}
    share = by_label.get(SINGLE_SHARD_BATCH) if job.scaling.strong_scaling else rungs.get(1)
    alone, apart, unsynced, communication, data = map(by_label.get, (SINGLE_NO_DDP, INDEPENDENT_RANKS, NO_SYNC, ALLREDUCE_ONLY, WITH_DATA))
    return ScalingRuns(job.scaling, rungs, share, alone, apart, unsynced, communication, data)


@dataclass(frozen=True)
class StepMeans:
    """A step of one round, in ms: the means over ranks and steps, but ``wall`` of the slowest rank."""

    wall_ms: float
    input_ms: float  # waiting for data, and copying them
    busy_ms: float  # own time besides
    exposed_comm_ms: float  # for other ranks, on the rank that waits least in each step: all that is left is communication
    exposed_allreduce_ms: float  # of gradients alone, on the rank that waits least for them
    wait_ms: float  # for other ranks
    peer_data_wait_ms: float  # of that, for data of theirs that are late


def step_means(timed: Round) -> StepMeans:
    traces, waits = timed.traces, collective_waits(timed)
    feeding = fmean(sum(trace.total_ms(phase) for phase in INPUT_PHASES) / trace.steps for trace in traces)
    return StepMeans(
        wall_ms=max(1000 * trace.wall_s / trace.steps for trace in traces),
        input_ms=feeding,
        busy_ms=fmean(own_ms(trace) for trace in traces) - feeding,
        exposed_comm_ms=waits.min_rank_ms,
        exposed_allreduce_ms=waits.min_rank_sync_ms,
        wait_ms=fmean(sum(trace.total_ms(phase) for phase in COLLECTIVE_PHASES) / trace.steps for trace in traces),
        peer_data_wait_ms=waits.peer_data_wait_ms,
    )


def step_means_by_round(record: Record) -> dict[int, StepMeans]:
    """Round -> its step."""
    return {timed.index: step_means(timed) for timed in record.rounds}
