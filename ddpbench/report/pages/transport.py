"""How gradients travel, in a few words."""

from __future__ import annotations

from ddpbench.record.environment import Environment, Transport

BACKEND_NAMES = {"nccl": "NCCL"}
TRANSPORT_NAMES = {"SHM": "shared memory", "TCP": "sockets", "NET/Socket": "sockets"}


def transport_text(environment: Environment) -> str:
    """``NCCL over NVLink``, ``NCCL over NVLink, InfiniBand between nodes``; empty where it is not known."""
    inside, between = (
        list(dict.fromkeys(_name(way) for way in environment.transport if way.inter_node == across)) for across in (False, True)
    )
    if not (inside or between):
        return ""
    apart = f", {' and '.join(between)} between nodes" if inside and between and inside != between else ""
    return f"{BACKEND_NAMES.get(environment.backend, environment.backend)} over {' and '.join(inside or between)}{apart}"


def _name(way: Transport) -> str:
    """What carries it, as far as that was told."""
    kind, *rest = way.via.split("/")
    by_network = f"NET/{rest[0]}" if kind == "NET" else kind
    return way.link_type or TRANSPORT_NAMES.get(by_network) or (rest[0] if kind == "NET" else kind)
