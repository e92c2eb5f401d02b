"""Checks of a job on several nodes: its network, and whether the nodes are equal."""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.record.checks import Imbalance, NoInfiniband, UnequalNodes
from ddpbench.record.environment import Environment, RankPlacement
from ddpbench.record.record import Record

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
