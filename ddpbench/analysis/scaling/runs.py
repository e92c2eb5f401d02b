"""The arms of a scaling job by what they are for, and what their rounds say of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ddpbench.analysis.collective_wait import waits_of
from ddpbench.analysis.ranks import own_ms
from ddpbench.record.record import Job, Record, Round
from ddpbench.record.scaling import ALONE, APART, COMMUNICATION, SHARE, UNSYNCED, WITH_DATA, Scaling, rung
from ddpbench.record.trace import WAITS_FOR_OTHERS

FEEDING = ("data", "host_to_device")


@dataclass(frozen=True)
class Arms:
    """None where an arm has no round."""

    scaling: Scaling
    rungs: dict[int, Record]  # ranks -> DDP on so many
    share: Record | None  # one rank with the batch that a rank of the whole world has
    alone: Record | None
    apart: Record | None
    unsynced: Record | None
    communication: Record | None
    with_data: Record | None

    @property
    def ranks(self) -> int:
        return self.scaling.ladder[-1]

    @property
    def one(self) -> Record | None:
        return self.rungs.get(1)

    @property
    def full(self) -> Record | None:
        return self.rungs.get(self.ranks)

    @property
    def last(self) -> Record | None:
        """What the way down leads to: with data, where there are any."""
        return self.with_data or self.full

    def there(self) -> Iterator[Record]:
        yield from self.rungs.values()
        yield from (arm for arm in (self.share, self.alone, self.apart, self.unsynced, self.communication, self.with_data) if arm)


def arms_of(job: Job) -> Arms | None:
    """The arms of ``job``; None for a job of another kind."""
    if job.scaling is None:
        return None
    by_label = {record.label: record for record in job.records if record.rounds and record.status != "invalid"}
    rungs = {ranks: record for ranks in job.scaling.ladder if (record := by_label.get(rung(ranks)))}
    share = by_label.get(SHARE) if job.scaling.strong else rungs.get(1)
    alone, apart, unsynced, communication, data = map(by_label.get, (ALONE, APART, UNSYNCED, COMMUNICATION, WITH_DATA))
    return Arms(job.scaling, rungs, share, alone, apart, unsynced, communication, data)


@dataclass(frozen=True)
class Step:
    """A step of one round, in ms: the means over ranks and steps, but ``wall`` of the slowest rank."""

    wall: float
    feeding: float  # waiting for data, and copying them
    busy: float  # own time besides
    least_wait: float  # for other ranks, on the rank that waits least in each step: all that is left is communication
    least_sync: float  # of gradients alone, on the rank that waits least for them
    wait: float  # for other ranks
    late_data: float  # of that, for data of theirs that are late


def step_of(timed: Round) -> Step:
    traces, waits = timed.traces, waits_of(timed)
    feeding = fmean(sum(trace.total_ms(phase) for phase in FEEDING) / trace.steps for trace in traces)
    return Step(
        wall=max(1000 * trace.wall_s / trace.steps for trace in traces),
        feeding=feeding,
        busy=fmean(own_ms(trace) for trace in traces) - feeding,
        least_wait=waits.least_ms,
        least_sync=waits.least_sync_ms,
        wait=fmean(sum(trace.total_ms(phase) for phase in WAITS_FOR_OTHERS) / trace.steps for trace in traces),
        late_data=waits.late_data_ms,
    )


def steps_of(record: Record) -> dict[int, Step]:
    """Round -> its step."""
    return {timed.index: step_of(timed) for timed in record.rounds}
