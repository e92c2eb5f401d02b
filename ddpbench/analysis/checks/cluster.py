"""What stands between several nodes: unequal shares, and a fast network that nobody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ddpbench.record.environment import Environment, RankPlace
from ddpbench.record.findings import Check
from ddpbench.record.record import Record
from ddpbench.record.text import count

SOCKETS = "NET/Socket"

OFF = ("NCCL_IB_DISABLE", "NCCL_NET")
"""What keeps NCCL from InfiniBand where somebody set it."""


def unequal_nodes(record: Record) -> Check | None:
    """The nodes with least and most, of ranks and of cores."""
    nodes = _nodes(record.environment)
    told = [*_extremes(nodes, len, "rank"), *_extremes(nodes, lambda places: places[0].usable_cores, "usable core")]
    if not told:
        return None
    return Check(
        name="unequal-nodes",
        effect="informs",
        sentence="; ".join(told),
        numbers={"nodes": len(nodes)},
        hint="all nodes go at the pace of the slowest",
    )


def no_infiniband(record: Record) -> Check | None:
    """NCCL's own word for what it uses, beside what the kernel shows."""
    environment = record.environment
    if not environment.infiniband or not any(way.across and way.via == SOCKETS for way in environment.transport):
        return None
    there = ", ".join(environment.infiniband)
    return Check(
        name="no-infiniband",
        effect="warns",
        sentence=f"NCCL goes over sockets between nodes: no InfiniBand used although {there} {'are' if ',' in there else 'is'} there",
        numbers={"devices": len(environment.infiniband)},
        hint=_way_to_infiniband(environment),
    )


def _way_to_infiniband(environment: Environment) -> str:
    asked = [name for name in OFF if environment.variables.get(name, "0") != "0"]
    if asked:
        return f"`unset {' '.join(asked)}`: NCCL was told to keep off it"
    return "is libibverbs there, and /dev/infiniband in the container? `NCCL_DEBUG=INFO` tells why it is not used"


def _nodes(environment: Environment) -> dict[str, list[RankPlace]]:
    nodes: dict[str, list[RankPlace]] = {}
    for place in environment.places:
        nodes.setdefault(place.host, []).append(place)
    return nodes


def _extremes(nodes: Mapping[str, list[RankPlace]], held: Callable[[list[RankPlace]], float], what: str) -> Iterator[str]:
    """``2 ranks on n2, 4 on n1``; nothing where all nodes have as much."""
    amounts = {host: held(places) for host, places in nodes.items()}
    least, most = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
    if amounts[least] < amounts[most]:
        yield f"{count(amounts[least], what)} on {least}, {amounts[most]:g} on {most}"
