"""The ways that gradients take between the ranks of a launch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddpbench.distributed.infiniband import active_devices
from ddpbench.distributed.nccl_log import Channel, cards, channels
from ddpbench.distributed.world import World
from ddpbench.machine.gpu import Gpu
from ddpbench.record.environment import RankPlace, Transport


class Fabric(msgspec.Struct, frozen=True):
    """What connects the ranks, as one of them sees it, or all together."""

    ways: list[Transport]
    infiniband: list[str]  # devices


def gloo_ways(places: Sequence[RankPlace]) -> list[Transport]:
    """Gloo's: sockets between any two ranks."""
    hosts = {place.host for place in places}
    inside = [Transport(via="TCP", across=False)] if len(places) > len(hosts) else []
    return [*inside, *([Transport(via="TCP", across=True)] if len(hosts) > 1 else [])]


def nccl_ways(log: str, places: Sequence[RankPlace]) -> list[Transport]:
    """Those that NCCL tells of in the log of one rank."""
    spoken = cards(log)
    return in_order({_way(channel, places, spoken) for channel in channels(log) if max(channel.source, channel.target) < len(places)})


def ask(world: World, log: str) -> Fabric:
    """What all ranks see, on rank 0; nothing on the others. ``log`` is NCCL's on this rank.

    InfiniBand is there where every node has it, and called by its name on the first.
    """
    own = Fabric(nccl_ways(log, world.places), active_devices())
    seen = world.gather(own)
    everywhere = seen and all(each.infiniband for each in seen)
    return Fabric(in_order({way for each in seen for way in each.ways}), seen[0].infiniband if everywhere else [])


def in_order(ways: set[Transport]) -> list[Transport]:
    """Those inside a host first."""
    return sorted(ways, key=lambda way: (way.across, way.via, way.over))


def _way(channel: Channel, places: Sequence[RankPlace], spoken: str) -> Transport:
    one, other = places[channel.source], places[channel.target]
    return Transport(via=channel.via, across=one.host != other.host, over=_over(channel, one, other, spoken))


def _over(channel: Channel, one: RankPlace, other: RankPlace, spoken: str) -> str:
    """What a connection goes over, where somebody tells."""
    if channel.via.startswith("NET/IB"):
        return spoken
    if not channel.via.startswith("P2P"):
        return ""
    if one.host != other.host:
        return "NVLink"  # between nodes it is the only one
    first, second = (Gpu.find(place.device_id)[0] for place in (one, other))
    nvlink = first.reaches_by_nvlink(second) if first and second else None
    return "" if nvlink is None else "NVLink" if nvlink else "PCIe"
