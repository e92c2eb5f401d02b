"""Checks of the machine: cores, clocks and power, memory, other processes, and whether the nodes are alike."""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.analysis.cpu_demand import are_workers_idle, cpu_demand, keeps_cores_busy, starved_ranks
from ddpbench.analysis.straggler import SERIOUS_THROTTLE_REASONS
from ddpbench.analysis.summary import compute_mfu
from ddpbench.record.checks import (
    AllocRetry,
    Imbalance,
    ImplausibleMfu,
    NoInfiniband,
    NoisyNeighbour,
    OversubscribedCpu,
    PowerCapped,
    Remeasured,
    SharedGpu,
    Throttled,
    UnequalNodes,
)
from ddpbench.record.environment import Environment, RankPlacement
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


def check_throttling(record: Record) -> Throttled | None:
    reasons_by_rank = [
        (trace.rank, SERIOUS_THROTTLE_REASONS.intersection(trace.health.throttle_reasons)) for trace in record.traces if trace.health
    ]
    ranks = sorted({rank for rank, reasons in reasons_by_rank if reasons})
    return Throttled(ranks=ranks, reasons=sorted({reason for _, seen in reasons_by_rank for reason in seen})) if ranks else None


def check_power_cap(record: Record) -> PowerCapped | None:
    ranks = sorted({trace.rank for trace in record.traces if trace.health and "sw-power-cap" in trace.health.throttle_reasons})
    return PowerCapped(ranks=ranks) if ranks else None


def check_remeasured_rounds(record: Record) -> Remeasured | None:
    remeasured = [timed.index for timed in record.rounds if any(trace.retry_reason for trace in timed.traces)]
    reasons = sorted({trace.retry_reason for trace in record.traces if trace.retry_reason})
    return Remeasured(round_indices=remeasured, reasons=reasons) if remeasured else None


def check_other_processes(record: Record) -> SharedGpu | None:
    processes_by_rank = {
        trace.rank: trace.health.other_processes for trace in record.traces if trace.health and trace.health.other_processes
    }
    return SharedGpu(ranks=sorted(processes_by_rank), other_processes=max(processes_by_rank.values())) if processes_by_rank else None


def check_allocator_retries(record: Record) -> AllocRetry | None:
    retries = sum(trace.memory.allocator_retries for trace in record.traces)
    return AllocRetry(retries=retries) if retries else None


def check_mfu(record: Record) -> ImplausibleMfu | None:
    mfu = compute_mfu(record)
    return ImplausibleMfu(mfu=mfu) if mfu is not None and mfu > 1 else None


SOCKET_TRANSPORT = "NET/Socket"

IB_DISABLING_VARIABLES = ("NCCL_IB_DISABLE", "NCCL_NET")
"""Environment variables that keep NCCL from InfiniBand if set."""


def check_infiniband(record: Record) -> NoInfiniband | None:
    """Compares the transport that NCCL reports with the devices that the kernel lists."""
    environment = record.environment
    if not environment.infiniband_devices or not any(
        transport.inter_node and transport.via == SOCKET_TRANSPORT for transport in environment.transport
    ):
        return None
    return NoInfiniband(disabled_by=[name for name in IB_DISABLING_VARIABLES if environment.variables.get(name, "0") != "0"])


def check_node_balance(record: Record) -> UnequalNodes | None:
    """Names the nodes with the fewest and the most ranks, and the fewest and the most cores."""
    nodes = _placements_by_host(record.environment)
    ranks = _imbalance({host: len(placements) for host, placements in nodes.items()})
    cores = _imbalance({host: placements[0].usable_cores for host, placements in nodes.items()})
    return UnequalNodes(ranks=ranks, usable_cores=cores) if ranks or cores else None


def _placements_by_host(environment: Environment) -> dict[str, list[RankPlacement]]:
    nodes: dict[str, list[RankPlacement]] = {}
    for placement in environment.placements:
        nodes.setdefault(placement.host, []).append(placement)
    return nodes


def _imbalance(amounts: Mapping[str, float]) -> Imbalance | None:
    """The hosts with the least and the most; None if all have the same amount."""
    least, most = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
    if amounts[least] == amounts[most]:
        return None
    return Imbalance(least=amounts[least], least_host=least, most=amounts[most], most_host=most)
