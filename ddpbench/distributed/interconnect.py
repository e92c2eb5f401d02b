"""Detects how ranks are connected: NVLink, PCIe, InfiniBand or sockets.

NCCL's log names the transport of each connection: P2P (NVLink or PCIe), SHM (host memory) or NET (InfiniBand or sockets).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddpbench.distributed.world import World
from ddpbench.machine.gpu import Gpu
from ddpbench.machine.read_text import read_text
from ddpbench.machine.variables import EnvVar
from ddpbench.record.environment import RankPlacement, Transport


class Interconnect(msgspec.Struct, frozen=True):
    """Connections between ranks, as seen by one rank or by all."""

    transports: list[Transport]
    infiniband_devices: list[str]


def gloo_transports(placements: Sequence[RankPlacement]) -> list[Transport]:
    """Transports of gloo, which uses TCP between all ranks."""
    hosts = {placement.host for placement in placements}
    intra_node = [Transport(via="TCP", inter_node=False)] if len(placements) > len(hosts) else []
    return [*intra_node, *([Transport(via="TCP", inter_node=True)] if len(hosts) > 1 else [])]


def nccl_transports(log: str, placements: Sequence[RankPlacement]) -> list[Transport]:
    """Transports in one rank's NCCL log."""
    nic = nic_type(log)
    return sort_transports(
        {
            _transport(channel, placements, nic)
            for channel in parse_channels(log)
            if max(channel.source_rank, channel.target_rank) < len(placements)
        }
    )


def gather_interconnect(world: World, log: str) -> Interconnect:
    """The Interconnect of all ranks, on rank 0; empty on the others. ``log`` is this rank's NCCL log.

    InfiniBand devices are listed only if every node has some, with the names on the first node.
    """
    local = Interconnect(nccl_transports(log, world.placements), active_infiniband_devices())
    gathered = world.gather(local)
    everywhere = gathered and all(interconnect.infiniband_devices for interconnect in gathered)
    return Interconnect(
        sort_transports({transport for interconnect in gathered for transport in interconnect.transports}),
        gathered[0].infiniband_devices if everywhere else [],
    )


def sort_transports(transports: set[Transport]) -> list[Transport]:
    """Sort transports, those within a host first."""
    return sorted(transports, key=lambda transport: (transport.inter_node, transport.via, transport.link_type))


def _transport(channel: NcclChannel, placements: Sequence[RankPlacement], nic: str) -> Transport:
    one, other = placements[channel.source_rank], placements[channel.target_rank]
    return Transport(via=channel.via, inter_node=one.host != other.host, link_type=_link_type(channel, one, other, nic))


def _link_type(channel: NcclChannel, one: RankPlacement, other: RankPlacement, nic: str) -> str:
    """Link type of a connection; empty if unknown."""
    if channel.via.startswith("NET/IB"):
        return nic
    if not channel.via.startswith("P2P"):
        return ""
    if one.host != other.host:
        return "NVLink"  # P2P between nodes always uses NVLink
    first, second = (Gpu.find(placement.device_id)[0] for placement in (one, other))
    nvlink = first.has_nvlink_to(second) if first and second else None
    return "" if nvlink is None else "NVLink" if nvlink else "PCIe"


CONNECTION_LOG_LEVELS = ("INFO", "TRACE")
"""Levels at which NCCL logs connections."""

CHANNEL_PATTERN = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via ((?:P2P|SHM|NET)/.*?)(?: comm 0x.*)?$",
    re.MULTILINE,
)
"""A connection: source rank, target rank, each with its device, and transport. AMD's RCCL appends the communicator."""

NIC_INDEX_PATTERN = re.compile(r"/\d+(?:\(\d+\)|\[\w+\])?(?=[/(]|$)")
"""NIC index, followed by the proxy rank if that is another rank: ``NET/IB/3(1)/GDRDMA``."""

NIC_PATTERN = re.compile(r"NCCL INFO NET/IB\w* : Using (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class NcclChannel:
    """A connection between two ranks. ``via`` is NCCL's transport name: ``P2P/CUMEM``, ``NET/IB/GDRDMA``."""

    source_rank: int
    target_rank: int
    via: str


def parse_channels(log: str) -> set[NcclChannel]:
    """The connections in NCCL log ``log``."""
    return {
        NcclChannel(int(source), int(target), NIC_INDEX_PATTERN.sub("", via.rstrip()))
        for source, target, via in CHANNEL_PATTERN.findall(log)
    }


def nic_type(log: str) -> str:
    """Link layer of the NICs that NCCL uses through verbs: ``InfiniBand`` or ``RoCE``; empty if mixed or unknown."""
    using = " ".join(NIC_PATTERN.findall(log))
    in_use = {"InfiniBand": "/IB" in using, "RoCE": "/RoCE" in using}
    names = [name for name, is_used in in_use.items() if is_used]
    return names[0] if len(names) == 1 else ""


@contextmanager
def capture_nccl_log(variables: MutableMapping[str, str] = os.environ) -> Iterator[Callable[[], str]]:
    """Turn on NCCL's log inside the context; yields a function that returns the log so far.

    The first communicator must be created inside the context, since NCCL reads its variables then. The log is kept in memory;
    NCCL writes to it when it connects, never during a collective. If the user has set NCCL_DEBUG variables, they stay
    unchanged: the log is then read from the user's log file, and is empty without one.
    """
    if any(name.startswith(EnvVar.NCCL_DEBUG) for name in variables):
        path = _user_log_file(variables)
        yield lambda: _read_log(path) if path else ""
        return
    log = os.memfd_create("nccl-log")
    settings: dict[str, str] = {
        EnvVar.NCCL_DEBUG: "INFO",
        EnvVar.NCCL_DEBUG_SUBSYS: "INIT,P2P,SHM,NET",
        EnvVar.NCCL_DEBUG_FILE: f"/proc/self/fd/{log}",
    }
    variables.update(settings)
    try:
        yield lambda: os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")
    finally:
        for name in settings:
            del variables[name]


def _user_log_file(variables: Mapping[str, str]) -> Path | None:
    """The user's NCCL log file, if its level includes connections; else None."""
    name = variables.get(EnvVar.NCCL_DEBUG_FILE)
    if not name or variables.get(EnvVar.NCCL_DEBUG, "").upper() not in CONNECTION_LOG_LEVELS:
        return None
    expansions = {"%h": socket.gethostname().partition(".")[0], "%p": str(os.getpid()), "%%": "%"}
    return Path(re.sub("%[hp%]", lambda match: expansions[match[0]], name))


def _read_log(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # nothing was logged yet, or not to this file
        return ""


SYSFS_INFINIBAND = Path("/sys/class/infiniband")
ACTIVE_STATE = "4: ACTIVE"


def active_infiniband_devices(root: Path = SYSFS_INFINIBAND) -> list[str]:
    """Names of this host's InfiniBand devices with an active port. Ethernet NICs in the same folder are skipped."""
    ports = [
        port
        for port in root.glob("*/ports/*")
        if read_text(port / "link_layer") == "InfiniBand" and read_text(port / "state") == ACTIVE_STATE
    ]
    return sorted({port.parent.parent.name for port in ports})
