"""Arms of a scaling job by role, and the mean step times of their rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ddpbench.analysis.collective_wait import collective_waits, exposed_allreduce_ms, exposed_comm_ms
from ddpbench.analysis.ranks import own_ms
from ddpbench.record.record import Job, Record, Round
from ddpbench.record.roles import ALLREDUCE_ONLY, INDEPENDENT, NO_SYNC, SINGLE_NO_DDP, SINGLE_SHARD_BATCH, WITH_DATA, ddp_role
from ddpbench.record.scaling import Scaling
from ddpbench.record.trace import COLLECTIVE_PHASES

INPUT_PHASES = ("data", "host_to_device")


@dataclass(frozen=True)
class ScalingRuns:
    """Records of a scaling job by role; None for an arm without rounds."""

    scaling: Scaling
    ddp_by_ranks: dict[int, Record]  # number of ranks -> DDP on that many
    single_shard_batch: Record | None  # DDP on one rank, with the batch that a rank of the whole world has
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
        """The run that the waterfall ends at: with data, if measured."""
        return self.with_data or self.full_world

    def all_records(self) -> Iterator[Record]:
        yield from self.ddp_by_ranks.values()
        yield from (
            arm
            for arm in (self.single_shard_batch, self.single_no_ddp, self.independent, self.no_sync, self.allreduce_only, self.with_data)
            if arm
        )


def scaling_runs(job: Job) -> ScalingRuns | None:
    """Return the arms of ``job``; None if it is no scaling job."""
    if job.scaling is None:
        return None
    by_role = {record.role: record for record in job.records if record.rounds and record.status != "invalid"}
    ddp_by_ranks = {ranks: record for ranks in job.scaling.world_sizes if (record := by_role.get(ddp_role(ranks)))}
    single_shard_batch = by_role.get(SINGLE_SHARD_BATCH) if job.scaling.strong_scaling else ddp_by_ranks.get(1)
    single_no_ddp, independent, no_sync, allreduce_only, with_data = map(
        by_role.get, (SINGLE_NO_DDP, INDEPENDENT, NO_SYNC, ALLREDUCE_ONLY, WITH_DATA)
    )
    return ScalingRuns(job.scaling, ddp_by_ranks, single_shard_batch, single_no_ddp, independent, no_sync, allreduce_only, with_data)


@dataclass(frozen=True)
class StepMeans:
    """Milliseconds per step of one round.

    Values are means over ranks and steps, but ``wall_ms`` is that of the slowest rank.
    """

    wall_ms: float
    input_ms: float  # waiting for data and copying it
    busy_ms: float  # the rest of a rank's own time
    exposed_comm_ms: float  # all-reduce of gradients and broadcast of buffers, without waits for late ranks
    exposed_allreduce_ms: float  # the same for gradients alone
    wait_ms: float  # in collectives
    peer_data_wait_ms: float  # part of ``wait_ms``: the data of other ranks is late


def step_means(timed: Round) -> StepMeans:
    traces = timed.traces
    input_ms = fmean(sum(trace.total_ms(phase) for phase in INPUT_PHASES) / trace.steps for trace in traces)
    return StepMeans(
        wall_ms=max(1000 * trace.wall_s / trace.steps for trace in traces),
        input_ms=input_ms,
        busy_ms=fmean(own_ms(trace) for trace in traces) - input_ms,
        exposed_comm_ms=exposed_comm_ms([timed]),
        exposed_allreduce_ms=exposed_allreduce_ms([timed]),
        wait_ms=fmean(sum(trace.total_ms(phase) for phase in COLLECTIVE_PHASES) / trace.steps for trace in traces),
        peer_data_wait_ms=collective_waits(timed).peer_data_wait_ms,
    )


def step_means_by_round(record: Record) -> dict[int, StepMeans]:
    """Return the mean step of each round, by round index."""
    return {timed.index: step_means(timed) for timed in record.rounds}
