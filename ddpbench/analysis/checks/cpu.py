"""Checks of the CPU: whether the job, or other processes, need more cores than there are."""

from __future__ import annotations

from ddpbench.analysis.cpu_demand import are_workers_idle, cpu_demand, keeps_cores_busy, starved_ranks
from ddpbench.record.checks import NoisyNeighbour, OversubscribedCpu
from ddpbench.record.record import Record


def check_cpu_demand(record: Record) -> OversubscribedCpu | None:
    """Loader workers and trainers against the cores of their node: the least of affinity, cgroup quota and SLURM.

    Workers that were idle, and need next to no core, do not count. Those of a script may sleep: if its CPU time is unknown, this is no more
    than a note, and there is none unless the cores were busy.
    """
    node = cpu_demand(record)
    if node.cores <= node.usable_cores or (node.trainer_cores <= node.usable_cores and are_workers_idle(record, node)):
        return None
    is_busy = keeps_cores_busy(record, node) if record.script is not None else True
    if is_busy is False:
        return None
    return OversubscribedCpu(
        severity="warning" if is_busy else "info",
        host=node.host,
        ranks=node.ranks,
        workers=node.workers,
        threads_per_rank=node.threads_per_rank,
        usable_cores=node.usable_cores,
        suggested_workers=node.max_workers if is_busy and 1 <= node.max_workers < node.workers else None,
    )


def check_starved_ranks(record: Record) -> NoisyNeighbour | None:
    """By the cores that CPU ranks got while they computed."""
    starved = starved_ranks(record)
    return NoisyNeighbour(cores_by_rank=dict(starved)) if starved else None
