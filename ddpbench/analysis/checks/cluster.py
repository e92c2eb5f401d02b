"""What stands between several nodes: unequal shares, and a fast network that nobody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ddpbench.record.environment import Environment, RankPlacement
from ddpbench.record.findings import Check
from ddpbench.record.record import Record
from ddpbench.record.text import pluralize

SOCKET_TRANSPORT = "NET/Socket"

IB_DISABLING_VARIABLES = ("NCCL_IB_DISABLE", "NCCL_NET")
"""What keeps NCCL from InfiniBand where somebody set it."""


def unequal_nodes(record: Record) -> Check | None:
    """The nodes with least and most, of ranks and of cores."""
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
    """NCCL's own word for what it uses, beside what the kernel shows."""
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
    """``2 ranks on n2, 4 on n1``; nothing where all nodes have as much."""
    amounts = {host: amount_of(places) for host, places in nodes.items()}
    least, most = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
    if amounts[least] < amounts[most]:
        yield f"{pluralize(amounts[least], what)} on {least}, {amounts[most]:g} on {most}"
