"""CPU usage of a node: cores that the job keeps busy, and cores that others do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

import msgspec

from ddpbench.analysis.ranks import drop_none
from ddpbench.record.loader_stats import CpuUsage
from ddpbench.record.record import Record
from ddpbench.record.trace import Trace

SATURATED_FRACTION = 0.9
"""From this busy fraction on, cores have no time for more work."""

MIN_OTHER_CORES, MIN_OTHER_FRACTION = 0.25, 0.1
"""Others share the node if they keep this many cores and this fraction of them busy: less is a machine's background load."""


@dataclass(frozen=True)
class NodeCpuUsage:
    """CPU usage of one node over all rounds. ``job_cores``, ``other_cores`` and ``throttled_cores`` are mean numbers of cores."""

    host: str
    cores: int  # monitored: those that the job may run on
    usable_cores: float  # what a CPU quota leaves of them
    job_cores: float
    other_cores: float
    throttled_cores: float | None  # cores that the job would also have kept busy without its CPU quota; None without a quota

    @property
    def busy_fraction(self) -> float:
        """The busy fraction of the job's quota (by the job) or of the cores (by all processes), whichever is greater."""
        return min(1.0, max(self.job_cores / self.usable_cores, (self.job_cores + self.other_cores) / self.cores))

    @property
    def throttled_fraction(self) -> float:
        """The fraction of the job's CPU demand that a CPU quota denied it."""
        return self.throttled_cores / (self.job_cores + self.throttled_cores) if self.throttled_cores else 0.0

    @property
    def is_shared(self) -> bool:
        """Whether other processes use a relevant part of the cores."""
        return self.other_cores >= max(MIN_OTHER_CORES, MIN_OTHER_FRACTION * self.cores)

    @property
    def is_saturated(self) -> bool:
        return self.busy_fraction >= SATURATED_FRACTION


def busiest_node(record: Record) -> NodeCpuUsage | None:
    """The node with the busiest cores; None if CPU usage was not monitored, or the job's own CPU time is unknown."""
    nodes = [node_cpu_usage(record, host) for host in dict.fromkeys(place.host for place in record.environment.placements)]
    return max((node for node in nodes if node), key=lambda node: node.busy_fraction, default=None)


def node_cpu_usage(record: Record, host: str) -> NodeCpuUsage | None:
    """CPU usage of the node ``host``; None if it was not monitored.

    With --cores each rank monitors its own cores, otherwise every rank monitors all of them.
    """
    placements = {place.rank: place for place in record.environment.placements if place.host == host}
    rounds = [[trace for trace in timed.traces if trace.rank in placements] for timed in record.rounds]
    if not rounds or any(trace.cpu_usage is None or trace.cpu_s is None for traces in rounds for trace in traces):
        return None
    separate_cores = record.config.cores is not None
    by_round = [_round_usage(traces, separate_cores) for traces in rounds]
    wall_s = fsum(each.wall_s for each in by_round)
    if not wall_s:
        return None
    cores_by_rank, usable_cores = (
        [usage.num_cores for usage in _rank_usages(rounds[-1])],
        min(place.usable_cores for place in placements.values()),
    )
    cores, busy_s = sum(cores_by_rank) if separate_cores else max(cores_by_rank), fsum(each.busy_s for each in by_round)
    job_s = min(busy_s, fsum(trace.cpu_s or 0.0 for traces in rounds for trace in traces))
    throttled = drop_none(each.throttled_s for each in by_round)
    return NodeCpuUsage(
        host=host,
        cores=cores,
        usable_cores=min(usable_cores, cores),
        job_cores=job_s / wall_s,
        other_cores=(busy_s - job_s) / wall_s,
        throttled_cores=fsum(throttled) / wall_s if len(throttled) == len(by_round) else None,
    )


def _round_usage(traces: Sequence[Trace], separate_cores: bool) -> CpuUsage:
    """CPU usage in one round: the sum over ranks if ``separate_cores``, else that of the rank that saw most of it.

    A CPU quota is shared by all ranks.
    """
    usages = _rank_usages(traces)
    busiest = max(usages, key=lambda usage: usage.busy_s)
    if not separate_cores:
        return busiest
    return msgspec.structs.replace(
        busiest,
        busy_s=fsum(usage.busy_s for usage in usages),
        wall_s=max(usage.wall_s for usage in usages),
        throttled_s=max(drop_none(usage.throttled_s for usage in usages), default=None),
    )


def _rank_usages(traces: Iterable[Trace]) -> list[CpuUsage]:
    return [trace.cpu_usage for trace in traces if trace.cpu_usage is not None]
