"""The processors' side: cores that a job needs, and cores that its ranks got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ddpbench.analysis.evidence import BOTTLENECK_FRACTION
from ddpbench.analysis.node_cpu_usage import SATURATED_FRACTION, busiest_node
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.trace import COLLECTIVE_PHASES, Trace

MIN_FAIR_FRACTION = 0.85
"""A rank that got less than this fraction of what it keeps busy at the least was kept from it."""

MAX_WAIT_FRACTION = 0.10
"""A rank that waits longer than this fraction of its time leaves cores idle by itself."""

MIN_WALL_S = 1.0
"""Below this, the ticks in which CPU time is counted weigh too much."""


@dataclass(frozen=True)
class CpuDemand:
    """What the job wants of the node where it is tightest."""

    host: str
    ranks: int
    workers: int  # a rank
    threads_per_rank: int  # a trainer
    usable_cores: float

    @property
    def cores(self) -> int:
        return self.ranks * (self.workers + self.threads_per_rank)

    @property
    def trainer_cores(self) -> int:
        """Cores for the trainers alone."""
        return self.ranks * self.threads_per_rank

    @property
    def max_workers(self) -> int:
        """Workers that a rank has cores for; less than 0 where the trainers alone want more than there are."""
        return int(self.usable_cores / self.ranks) - self.threads_per_rank


def cpu_demand(record: Record) -> CpuDemand:
    """Loader workers and trainers against usable cores, on the node that lacks most of them or has least to spare."""
    usable = {place.host: place.usable_cores for place in record.environment.placements}
    ranks = Counter(place.host for place in record.environment.placements)
    workers = 0 if record.config.loader == SYNTHETIC else record.workers
    threads = trainer_threads(record)
    if kept := record.config.cores:
        usable = {host: min(cores, kept * ranks[host]) for host, cores in usable.items()}
    nodes = [CpuDemand(host, ranks[host], workers, threads, cores) for host, cores in usable.items()]
    return min(nodes, key=lambda node: node.usable_cores - node.cores)


def trainer_threads(record: Record) -> int:
    """Cores that one trainer process keeps busy: one that feeds a GPU, or the threads that a CPU rank computes with."""
    return 1 if record.environment.device_type != "cpu" else configured_threads(record) or 1


def configured_threads(record: Record) -> int | None:
    """The threads that a CPU rank was told to compute with; None where nobody told it, and torch takes all cores."""
    variable = record.environment.variables.get("OMP_NUM_THREADS", "")
    return record.config.threads or (int(variable) if variable.isdecimal() else None)


def oversubscribed_node(record: Record) -> CpuDemand | None:
    """The node on which CPU ranks share fewer cores than they want; None where there are enough, or GPUs compute.

    Too many are the threads that compute or, if all cores were busy, these with the loader's workers, unless these hardly work.
    """
    wanted = cpu_demand(record)
    if record.environment.device_type != "cpu" or wanted.cores <= wanted.usable_cores:
        return None
    by_workers = _is_saturated(record, wanted) and not are_workers_idle(record, wanted)
    return wanted if wanted.trainer_cores > wanted.usable_cores or by_workers else None


def starved_ranks(record: Record) -> Mapping[int, float]:
    """Rank -> cores it got, for CPU ranks that computed nearly all the time and yet got fewer than they keep busy at the least.

    One thread of a computing rank is always on a core; of several, half of them are asked for, since not all of a step is
    spread over all of them. Loader workers' time counts as the rank's, so that too little is found too seldom, never too often.
    Empty where the job itself wants more cores than there are: nobody else is needed to explain that; and where the cores were
    watched, and nobody else was there.
    """
    wanted, watched = cpu_demand(record), busiest_node(record)
    if record.environment.device_type != "cpu" or wanted.cores > wanted.usable_cores or (watched is not None and not watched.is_shared):
        return {}
    got = {rank: _starved_cores(seen, min_busy_cores(wanted.threads_per_rank)) for rank, seen in record.traces_by_rank.items()}
    return {rank: cores for rank, cores in got.items() if cores is not None}


def min_busy_cores(threads: int) -> float:
    """Cores that a computing rank of so many threads keeps busy at the least."""
    return max(1.0, threads / 2)


def traces_on_host(record: Record, host: str) -> list[Trace]:
    """Of the ranks on one node, all rounds."""
    there = {place.rank for place in record.environment.placements if place.host == host}
    return [trace for trace in record.traces if trace.rank in there]


def cores_per_trainer(traces: Sequence[Trace]) -> float | None:
    """Cores that a trainer process got while it waited for nothing, the mean over ``traces``; None where CPU times are not known.

    The time of its loader's workers is left out as far as they told it.
    """
    if any(trace.cpu_s is None for trace in traces):
        return None
    used_s = fsum((trace.cpu_s or 0.0) - worker_cpu_s(trace) for trace in traces)
    computed_s = fsum(trace.wall_s - waited_s(trace) for trace in traces)
    return max(0.0, used_s) / computed_s if computed_s > 0 else None


def worker_cpu_s(trace: Trace) -> float:
    """Seconds of cores that a rank's loader workers told to have used in a round."""
    return fsum(trace.loader_stats.cpu_s.values()) if trace.loader_stats else 0.0


def waited_s(trace: Trace) -> float:
    """Seconds of a round in which a rank waited for data, for its copy, or for other ranks."""
    return fsum(trace.total_ms(phase) for phase in ("data", "host_to_device", *COLLECTIVE_PHASES)) / 1000


def _is_saturated(record: Record, node: CpuDemand) -> bool:
    """By the CPU time of the ranks there and of their workers; False where that was not read."""
    used = [trace.cpu_s for trace in traces_on_host(record, node.host)]
    wall_s = fsum(timed.wall_s for timed in record.rounds)
    return None not in used and fsum(each or 0.0 for each in used) >= SATURATED_FRACTION * node.usable_cores * wall_s


def are_workers_idle(record: Record, node: CpuDemand) -> bool:
    """Whether the loader's workers keep next to none of the cores busy; False if their CPU time is unknown."""
    traces = traces_on_host(record, node.host)
    if any(trace.loader_stats is None or not trace.loader_stats.cpu_s for trace in traces):
        return False
    wall_s = fsum(timed.wall_s for timed in record.rounds)
    return fsum(map(worker_cpu_s, traces)) < BOTTLENECK_FRACTION * node.usable_cores * wall_s


def _starved_cores(traces: Sequence[Trace], min_cores: float) -> float | None:
    """Cores that one rank got, where that is too few."""
    used = [trace.cpu_s for trace in traces if trace.cpu_s is not None]
    wall_s = fsum(trace.wall_s for trace in traces)
    waiting_s = fsum(map(waited_s, traces))
    if len(used) < len(traces) or wall_s < MIN_WALL_S or waiting_s > MAX_WAIT_FRACTION * wall_s:
        return None
    cores = fsum(used) / wall_s
    return cores if cores < MIN_FAIR_FRACTION * min_cores * (1 - waiting_s / wall_s) else None
