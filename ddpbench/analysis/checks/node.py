"""Checks of the nodes: clocks, power, other processes, memory, cores, network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ddpbench.analysis.cpu_demand import CpuDemand, are_workers_idle, cpu_demand, starved_ranks, trainer_threads
from ddpbench.analysis.straggler import SERIOUS_THROTTLE_REASONS
from ddpbench.record.checks import Check
from ddpbench.record.environment import Environment, RankPlacement
from ddpbench.record.record import Record
from ddpbench.record.text import pluralize

TOP_COMMAND = "top -b -n 1 -o %CPU | head -15"
"""Shows which processes use the CPU of a host."""


def throttled(record: Record) -> Check | None:
    slowed = [(trace.rank, SERIOUS_THROTTLE_REASONS.intersection(trace.health.throttle_reasons)) for trace in record.traces if trace.health]
    ranks = sorted({rank for rank, reasons in slowed if reasons})
    if not ranks:
        return None
    reasons = sorted({reason for _, seen in slowed for reason in seen})
    return Check(
        code="throttled",
        severity="warns",
        sentence=f"{format_ranks(record, ranks)}: {', '.join(reasons)}",
        numbers={"ranks": len(ranks), "first_rank": ranks[0]},
        hint="too hot, or too little power: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`",
    )


def power_cap(record: Record) -> Check | None:
    ranks = sorted({trace.rank for trace in record.traces if trace.health and "sw-power-cap" in trace.health.throttle_reasons})
    if not ranks:
        return None
    return Check(
        code="power-cap",
        severity="informs",
        sentence=f"{format_ranks(record, ranks)}: clocks held down by the power limit, as on many a busy GPU",
        numbers={"ranks": len(ranks), "first_rank": ranks[0]},
    )


def rerun(record: Record) -> Check | None:
    again = [timed.index + 1 for timed in record.rounds if any(trace.retry_reason for trace in timed.traces)]
    if not again:
        return None
    reasons = sorted({trace.retry_reason for trace in record.traces if trace.retry_reason})
    return Check(
        code="rerun",
        severity="informs",
        sentence=f"measured a second time for {', '.join(reasons)}: round {', '.join(map(str, again))}",
        numbers={"rounds": len(again)},
    )


def shared_gpu(record: Record) -> Check | None:
    visitors = {trace.rank: trace.health.other_processes for trace in record.traces if trace.health and trace.health.other_processes}
    if not visitors:
        return None
    most = max(visitors.values())
    return Check(
        code="shared-gpu",
        severity="warns",
        sentence=f"{format_ranks(record, sorted(visitors))}: {pluralize(most, 'other process', 'es')} on the GPU",
        numbers={"ranks": len(visitors), "other_processes": most},
        hint="`nvidia-smi` lists them",
    )


def alloc_retry(record: Record) -> Check | None:
    retries = sum(trace.memory.allocator_retries for trace in record.traces)
    if not retries:
        return None
    return Check(
        code="alloc-retry",
        severity="warns",
        sentence=f"the allocator ran out of memory and tried again {pluralize(retries, 'time')}",
        numbers={"retries": retries},
        hint="a smaller --batch-size",
    )


def cpu_starved(record: Record) -> Check | None:
    """Loader workers and trainers against the cores of their node: the least of affinity, cgroup quota and SLURM.

    Workers that were idle, and need next to no core, do not count.
    """
    node = cpu_demand(record)
    if node.cores <= node.usable_cores or (node.trainer_cores <= node.usable_cores and are_workers_idle(record, node)):
        return None
    on = f" on {node.host}" if record.environment.nodes > 1 else ""
    return Check(
        code="cpu-starved",
        severity="warns",
        sentence=f"{format_demand(node)} > {pluralize(node.usable_cores, 'usable core')}{on}",
        numbers={"ranks": node.ranks, "workers": node.workers, "trainer_threads": node.threads_per_rank, "usable_cores": node.usable_cores},
        hint=f"`-j {node.max_workers}`, or more cores" if 1 <= node.max_workers < node.workers else "fewer ranks or threads, or more cores",
    )


def format_demand(node: CpuDemand) -> str:
    """``4 ranks x 16 workers + 4``, ``2 ranks x 3 threads``."""
    if node.workers:
        return f"{pluralize(node.ranks, 'rank')} x {pluralize(node.workers, 'worker')} + {node.trainer_cores}"
    return f"{pluralize(node.ranks, 'rank')} x {pluralize(node.threads_per_rank, 'thread')}"


def noisy_neighbour(record: Record) -> Check | None:
    """By the cores that CPU ranks got while they computed."""
    kept = starved_ranks(record)
    if not kept:
        return None
    return Check(
        code="noisy-neighbour",
        severity="warns",
        sentence=f"{format_starved_ranks(record)} in computing",
        numbers={"ranks": len(kept), "least_cores": min(kept.values())},
        hint=f"`{TOP_COMMAND}` shows who else computes here",
    )


def format_starved_ranks(record: Record) -> str:
    """``rank 0 (node-01) got 0.62 of a core``, ``2 ranks got 1.20 to 1.31 of 4 cores each``."""
    kept, threads = starved_ranks(record), trainer_threads(record)
    least, most = f"{min(kept.values()):.2f}", f"{max(kept.values()):.2f}"
    cores = (least if least == most else f"{least} to {most}") + (f" of {threads} cores" if threads > 1 else " of a core")
    return f"{format_ranks(record, sorted(kept))} got {cores}" + (" each" if len(kept) > 1 else "")


def format_ranks(record: Record, ranks: list[int]) -> str:
    """``rank 2 (node-01)``, or ``4 ranks`` for several."""
    if len(ranks) > 1:
        return f"{len(ranks)} ranks"
    return next(f"rank {place.rank} ({place.host})" for place in record.environment.placements if place.rank == ranks[0])


SOCKET_TRANSPORT = "NET/Socket"

IB_DISABLING_VARIABLES = ("NCCL_IB_DISABLE", "NCCL_NET")
"""Environment variables that keep NCCL from InfiniBand if set."""


def unequal_nodes(record: Record) -> Check | None:
    """Names the nodes with the fewest and the most ranks, and the fewest and the most cores."""
    nodes = _places_by_host(record.environment)
    told = [*_imbalance(nodes, len, "rank"), *_imbalance(nodes, lambda places: places[0].usable_cores, "usable core")]
    if not told:
        return None
    return Check(
        code="unequal-nodes",
        severity="informs",
        sentence="; ".join(told),
        numbers={"nodes": len(nodes)},
        hint="all nodes go at the pace of the slowest",
    )


def no_infiniband(record: Record) -> Check | None:
    """Compares the transport that NCCL reports with the devices that the kernel lists."""
    environment = record.environment
    if not environment.infiniband_devices or not any(way.inter_node and way.via == SOCKET_TRANSPORT for way in environment.transport):
        return None
    there = ", ".join(environment.infiniband_devices)
    return Check(
        code="no-infiniband",
        severity="warns",
        sentence=f"NCCL goes over sockets between nodes: no InfiniBand used although {there} {'are' if ',' in there else 'is'} there",
        numbers={"devices": len(environment.infiniband_devices)},
        hint=_infiniband_hint(environment),
    )


def _infiniband_hint(environment: Environment) -> str:
    asked = [name for name in IB_DISABLING_VARIABLES if environment.variables.get(name, "0") != "0"]
    if asked:
        return f"`unset {' '.join(asked)}`: NCCL was told to keep off it"
    return "is libibverbs there, and /dev/infiniband in the container? `NCCL_DEBUG=INFO` tells why it is not used"


def _places_by_host(environment: Environment) -> dict[str, list[RankPlacement]]:
    nodes: dict[str, list[RankPlacement]] = {}
    for place in environment.placements:
        nodes.setdefault(place.host, []).append(place)
    return nodes


def _imbalance(nodes: Mapping[str, list[RankPlacement]], amount_of: Callable[[list[RankPlacement]], float], what: str) -> Iterator[str]:
    """``2 ranks on n2, 4 on n1``; nothing if all nodes have the same number."""
    amounts = {host: amount_of(places) for host, places in nodes.items()}
    least, most = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
    if amounts[least] < amounts[most]:
        yield f"{pluralize(amounts[least], what)} on {least}, {amounts[most]:g} on {most}"
