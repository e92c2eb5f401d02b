"""CPU demand: cores that a job needs, and cores that its ranks got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ddpbench.analysis.node_cpu_usage import SATURATED_FRACTION, busiest_node
from ddpbench.analysis.summary import BOTTLENECK_FRACTION
from ddpbench.record.environment import RankPlacement
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.trace import COLLECTIVE_PHASES, Trace

MIN_FAIR_FRACTION = 0.85
"""A CPU rank is starved if it gets less than this fraction of ``min_busy_cores``."""

MAX_WAIT_FRACTION = 0.10
"""A rank that waits longer than this fraction of its time leaves cores idle anyway: it is not judged starved."""

MIN_WALL_S = 1.0
"""Wall time needed to judge a rank's CPU time: below, the clock ticks in which it is counted are too coarse."""


MIN_LOAD = 0.8
"""Threads per core from which the cost of an image with all cores busy is known from the run itself.

Busy cores share caches, memory and often execution units: beside idle ones an image costs less.
"""


@dataclass(frozen=True)
class CpuDemand:
    """Cores that the job needs on the node where they are scarcest."""

    host: str
    ranks: int
    workers: int  # per rank
    threads_per_rank: int  # of its trainer process
    usable_cores: float

    @property
    def cores(self) -> int:
        return self.ranks * (self.workers + self.threads_per_rank)

    @property
    def trainer_cores(self) -> int:
        """Cores for the trainer processes, without loader workers."""
        return self.ranks * self.threads_per_rank

    @property
    def max_workers(self) -> int:
        """Workers per rank that there are cores for; negative if the trainers need more cores than there are."""
        return int(self.usable_cores / self.ranks) - self.threads_per_rank


def cpu_demand(record: Record) -> CpuDemand:
    """Cores needed by loader workers and trainers, on the node with the fewest spare cores."""
    workers = 0 if record.config.loader == SYNTHETIC else record.workers
    return scarcest_node(record.environment.placements, workers, trainer_threads(record), record.config.cores)


def scarcest_node(placements: Sequence[RankPlacement], workers: int, threads_per_rank: int, cores_per_rank: int | None) -> CpuDemand:
    """Cores needed by ranks with ``workers`` and ``threads_per_rank``, on the node with the fewest spare cores.

    A rank uses at most ``cores_per_rank``.
    """
    usable_cores = {place.host: place.usable_cores for place in placements}
    ranks = Counter(place.host for place in placements)
    if cores_per_rank:
        usable_cores = {host: min(cores, cores_per_rank * ranks[host]) for host, cores in usable_cores.items()}
    nodes = [CpuDemand(host, ranks[host], workers, threads_per_rank, cores) for host, cores in usable_cores.items()]
    return min(nodes, key=lambda node: node.usable_cores - node.cores)


def all_cores_workers(usable_cores: float, ranks: int, workers: int) -> int | None:
    """Workers per rank of a loader benchmark with a worker for every core of a node with ``ranks``.

    None if the run has nearly as many threads, one per trainer, and so shows it itself.
    """
    is_shown = workers and ranks * (workers + 1) >= MIN_LOAD * usable_cores
    return None if is_shown else max(1, int(usable_cores / ranks))


def trainer_threads(record: Record) -> int:
    """Cores that one trainer process keeps busy: one to feed a GPU, or the compute threads of a CPU rank."""
    return 1 if record.environment.device_type != "cpu" else configured_threads(record) or 1


def configured_threads(record: Record) -> int | None:
    """Configured compute threads of a CPU rank; None if not configured, so that torch uses all cores."""
    variable = record.environment.variables.get("OMP_NUM_THREADS", "")
    return record.config.threads or (int(variable) if variable.isdecimal() else None)


def oversubscribed_node(record: Record) -> CpuDemand | None:
    """The node whose CPU ranks need more cores than it has; None if there are enough, or the job trains on GPUs.

    A node is oversubscribed if the compute threads alone exceed its cores; those of a script may sleep, so that its cores must have been
    busy as well. If only compute threads and loader workers together do, all cores must have been busy and the workers not idle.
    """
    demand = cpu_demand(record)
    if record.environment.device_type != "cpu" or demand.cores <= demand.usable_cores:
        return None
    is_saturated = bool(keeps_cores_busy(record, demand))
    if demand.trainer_cores > demand.usable_cores:
        return demand if is_saturated or record.script is None else None
    return demand if is_saturated and not are_workers_idle(record, demand) else None


def starved_ranks(record: Record) -> Mapping[int, float]:
    """Rank -> cores it got, for CPU ranks that computed nearly all the time and got too few cores.

    A single compute thread should always be on a core. Of several threads only half are required, since parts of a step do not use all of
    them. CPU time of loader workers counts as the rank's, so starvation is found too rarely rather than too often. Empty if the job itself
    needs more cores than there are, which explains it, or if CPU monitoring saw no other processes.
    """
    demand, usage = cpu_demand(record), busiest_node(record)
    if record.environment.device_type != "cpu" or demand.cores > demand.usable_cores or (usage is not None and not usage.is_shared):
        return {}
    cores_by_rank = {
        rank: _starved_cores(traces, min_busy_cores(demand.threads_per_rank)) for rank, traces in record.traces_by_rank.items()
    }
    return {rank: cores for rank, cores in cores_by_rank.items() if cores is not None}


def min_busy_cores(threads: int) -> float:
    """The fewest cores that a computing rank with this many threads keeps busy."""
    return max(1.0, threads / 2)


def traces_on_host(record: Record, host: str) -> list[Trace]:
    """All traces of the ranks on one node."""
    ranks = {place.rank for place in record.environment.placements if place.host == host}
    return [trace for trace in record.traces if trace.rank in ranks]


def cores_per_trainer(traces: Sequence[Trace]) -> float | None:
    """Mean cores that a trainer process got while it was not waiting; None if CPU times are unknown.

    CPU time of its loader's workers is excluded as far as they report it.
    """
    if any(trace.cpu_s is None for trace in traces):
        return None
    cpu_s = fsum((trace.cpu_s or 0.0) - worker_cpu_s(trace) for trace in traces)
    computed_s = fsum(trace.wall_s - waited_s(trace) for trace in traces)
    return max(0.0, cpu_s) / computed_s if computed_s > 0 else None


def worker_cpu_s(trace: Trace) -> float:
    """CPU seconds that a rank's loader workers report for a round."""
    return fsum(trace.loader_stats.cpu_s.values()) if trace.loader_stats else 0.0


def waited_s(trace: Trace) -> float:
    """Seconds of a round in which a rank waited for data, for its copy, or for other ranks."""
    return fsum(trace.total_ms(phase) for phase in ("data", "host_to_device", *COLLECTIVE_PHASES)) / 1000


def keeps_cores_busy(record: Record, node: CpuDemand) -> bool | None:
    """Whether the ranks and workers on ``node`` keep its cores busy; None if their CPU time is unknown.

    That of the training threads is known of watched scripts, too: it may show by itself that the cores are busy.
    """
    traces, wall_s = traces_on_host(record, node.host), fsum(timed.wall_s for timed in record.rounds)
    busy_s = SATURATED_FRACTION * node.usable_cores * wall_s
    if all(trace.cpu_s is not None for trace in traces):
        return fsum(trace.cpu_s or 0.0 for trace in traces) >= busy_s
    return True if fsum(trace.thread_cpu_s or 0.0 for trace in traces) >= busy_s else None


def are_workers_idle(record: Record, node: CpuDemand) -> bool:
    """Whether the loader's workers keep next to none of the cores busy; False if their CPU time is unknown."""
    traces = traces_on_host(record, node.host)
    if any(trace.loader_stats is None or not trace.loader_stats.cpu_s for trace in traces):
        return False
    wall_s = fsum(timed.wall_s for timed in record.rounds)
    return fsum(map(worker_cpu_s, traces)) < BOTTLENECK_FRACTION * node.usable_cores * wall_s


def _starved_cores(traces: Sequence[Trace], min_cores: float) -> float | None:
    """Cores that one rank got if these are too few, else None."""
    used = [trace.cpu_s for trace in traces if trace.cpu_s is not None]
    wall_s = fsum(trace.wall_s for trace in traces)
    waiting_s = fsum(map(waited_s, traces))
    if len(used) < len(traces) or wall_s < MIN_WALL_S or waiting_s > MAX_WAIT_FRACTION * wall_s:
        return None
    cores = fsum(used) / wall_s
    return cores if cores < MIN_FAIR_FRACTION * min_cores * (1 - waiting_s / wall_s) else None
