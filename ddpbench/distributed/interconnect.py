"""The ways that gradients take between the ranks of a launch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddpbench.distributed.infiniband import active_infiniband_devices
from ddpbench.distributed.nccl_log import NcclChannel, nic_type, parse_channels
from ddpbench.distributed.world import World
from ddpbench.machine.gpu import Gpu
from ddpbench.record.environment import RankPlacement, Transport


class Interconnect(msgspec.Struct, frozen=True):
    """What connects the ranks, as one of them sees it, or all together."""

    transports: list[Transport]
    infiniband_devices: list[str]  # devices


def gloo_transports(placements: Sequence[RankPlacement]) -> list[Transport]:
    """Gloo's: sockets between any two ranks."""
    hosts = {place.host for place in placements}
    inside = [Transport(via="TCP", inter_node=False)] if len(placements) > len(hosts) else []
    return [*inside, *([Transport(via="TCP", inter_node=True)] if len(hosts) > 1 else [])]


def nccl_transports(log: str, placements: Sequence[RankPlacement]) -> list[Transport]:
    """Those that NCCL tells of in the log of one rank."""
    spoken = nic_type(log)
    return sort_transports(
        {
            _transport(channel, placements, spoken)
            for channel in parse_channels(log)
            if max(channel.source_rank, channel.target_rank) < len(placements)
        }
    )


def gather_interconnect(world: World, log: str) -> Interconnect:
    """What all ranks see, on rank 0; nothing on the others. ``log`` is NCCL's on this rank.

    InfiniBand is there where every node has it, and called by its name on the first.
    """
    own = Interconnect(nccl_transports(log, world.placements), active_infiniband_devices())
    seen = world.gather(own)
    everywhere = seen and all(each.infiniband_devices for each in seen)
    return Interconnect(
        sort_transports({way for each in seen for way in each.transports}), seen[0].infiniband_devices if everywhere else []
    )


def sort_transports(transports: set[Transport]) -> list[Transport]:
    """Those inside a host first."""
    return sorted(transports, key=lambda way: (way.inter_node, way.via, way.link_type))


def _transport(channel: NcclChannel, placements: Sequence[RankPlacement], nic: str) -> Transport:
    one, other = placements[channel.source_rank], placements[channel.target_rank]
    return Transport(via=channel.via, inter_node=one.host != other.host, link_type=_link_type(channel, one, other, nic))


def _link_type(channel: NcclChannel, one: RankPlacement, other: RankPlacement, nic: str) -> str:
    """What a connection goes over, where somebody tells."""
    if channel.via.startswith("NET/IB"):
        return nic
    if not channel.via.startswith("P2P"):
        return ""
    if one.host != other.host:
        return "NVLink"  # between nodes it is the only one
    first, second = (Gpu.find(place.device_id)[0] for place in (one, other))
    nvlink = first.has_nvlink_to(second) if first and second else None
    return "" if nvlink is None else "NVLink" if nvlink else "PCIe"
