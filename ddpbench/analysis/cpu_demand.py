"""The processors' side: cores that a job needs, and cores that its ranks got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ddpbench.analysis.evidence import BINDING
from ddpbench.analysis.node_cpu_usage import ALL_BUSY, busiest
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.trace import WAITS_FOR_OTHERS, Trace

FAIR = 0.85
"""A rank that got less than this fraction of what it keeps busy at the least was kept from it."""

MOST_WAITING = 0.10
"""A rank that waits longer than this fraction of its time leaves cores idle by itself."""

LEAST_S = 1.0
"""Below this, the ticks in which CPU time is counted weigh too much."""


@dataclass(frozen=True)
class Need:
    """What the job wants of the node where it is tightest."""

    host: str
    ranks: int
    workers: int  # a rank
    threads: int  # a trainer
    usable: float

    @property
    def cores(self) -> int:
        return self.ranks * (self.workers + self.threads)

    @property
    def trainers(self) -> int:
        """Cores for the trainers alone."""
        return self.ranks * self.threads

    @property
    def room(self) -> int:
        """Workers that a rank has cores for; less than 0 where the trainers alone want more than there are."""
        return int(self.usable / self.ranks) - self.threads


def need(record: Record) -> Need:
    """Loader workers and trainers against usable cores, on the node that lacks most of them or has least to spare."""
    usable = {place.host: place.usable_cores for place in record.environment.places}
    ranks = Counter(place.host for place in record.environment.places)
    workers = 0 if record.config.loader == SYNTHETIC else record.workers
    threads = trainer_threads(record)
    if kept := record.config.cores:
        usable = {host: min(cores, kept * ranks[host]) for host, cores in usable.items()}
    nodes = [Need(host, ranks[host], workers, threads, cores) for host, cores in usable.items()]
    return min(nodes, key=lambda node: node.usable - node.cores)


def trainer_threads(record: Record) -> int:
    """Cores that one trainer process keeps busy: one that feeds a GPU, or the threads that a CPU rank computes with."""
    return 1 if record.environment.device_type != "cpu" else given_threads(record) or 1


def given_threads(record: Record) -> int | None:
    """The threads that a CPU rank was told to compute with; None where nobody told it, and torch takes all cores."""
    variable = record.environment.variables.get("OMP_NUM_THREADS", "")
    return record.config.threads or (int(variable) if variable.isdecimal() else None)


def crowded(record: Record) -> Need | None:
    """The node on which CPU ranks share fewer cores than they want; None where there are enough, or GPUs compute.

    Too many are the threads that compute or, if all cores were busy, these with the loader's workers, unless these hardly work.
    """
    wanted = need(record)
    if record.environment.device_type != "cpu" or wanted.cores <= wanted.usable:
        return None
    by_workers = _all_busy(record, wanted) and not workers_idle(record, wanted)
    return wanted if wanted.trainers > wanted.usable or by_workers else None


def kept_from_cores(record: Record) -> Mapping[int, float]:
    """Rank -> cores it got, for CPU ranks that computed nearly all the time and yet got fewer than they keep busy at the least.

    One thread of a computing rank is always on a core; of several, half of them are asked for, since not all of a step is
    spread over all of them. Loader workers' time counts as the rank's, so that too little is found too seldom, never too often.
    Empty where the job itself wants more cores than there are: nobody else is needed to explain that; and where the cores were
    watched, and nobody else was there.
    """
    wanted, watched = need(record), busiest(record)
    if record.environment.device_type != "cpu" or wanted.cores > wanted.usable or (watched is not None and not watched.shared):
        return {}
    got = {rank: _got(seen, least_threads(wanted.threads)) for rank, seen in record.traces_by_rank.items()}
    return {rank: cores for rank, cores in got.items() if cores is not None}


def least_threads(threads: int) -> float:
    """Cores that a computing rank of so many threads keeps busy at the least."""
    return max(1.0, threads / 2)


def traces_on(record: Record, host: str) -> list[Trace]:
    """Of the ranks on one node, all rounds."""
    there = {place.rank for place in record.environment.places if place.host == host}
    return [trace for trace in record.traces if trace.rank in there]


def trainer_got(traces: Sequence[Trace]) -> float | None:
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
    return fsum(trace.loading.cpu_s.values()) if trace.loading else 0.0


def waited_s(trace: Trace) -> float:
    """Seconds of a round in which a rank waited for data, for its copy, or for other ranks."""
    return fsum(trace.total_ms(phase) for phase in ("data", "host_to_device", *WAITS_FOR_OTHERS)) / 1000


def _all_busy(record: Record, node: Need) -> bool:
    """By the CPU time of the ranks there and of their workers; False where that was not read."""
    used = [trace.cpu_s for trace in traces_on(record, node.host)]
    wall_s = fsum(timed.wall_s for timed in record.rounds)
    return None not in used and fsum(each or 0.0 for each in used) >= ALL_BUSY * node.usable * wall_s


def workers_idle(record: Record, node: Need) -> bool:
    """Whether the loader's workers keep next to none of the cores busy; False if their CPU time is unknown."""
    traces = traces_on(record, node.host)
    if any(trace.loading is None or not trace.loading.cpu_s for trace in traces):
        return False
    wall_s = fsum(timed.wall_s for timed in record.rounds)
    return fsum(map(worker_cpu_s, traces)) < BINDING * node.usable * wall_s


def _got(traces: Sequence[Trace], least: float) -> float | None:
    """Cores that one rank got, where that is too few."""
    used = [trace.cpu_s for trace in traces if trace.cpu_s is not None]
    wall_s = fsum(trace.wall_s for trace in traces)
    waiting_s = fsum(map(waited_s, traces))
    if len(used) < len(traces) or wall_s < LEAST_S or waiting_s > MOST_WAITING * wall_s:
        return None
    cores = fsum(used) / wall_s
    return cores if cores < FAIR * least * (1 - waiting_s / wall_s) else None
