"""The machine and the software a record comes from: one part common to the job, one part a rank."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.ranges import AtLeastOne, Count, NonZero

DeviceType = Literal["cuda", "cpu"]


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """Versions that must agree over ranks."""

    ddpbench: str
    python: str
    torch: str
    torchvision: str | None = None
    accelerate: str | None = None
    dali: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None


class RankPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank runs."""

    rank: Count
    host: str
    pid: Count
    local_rank: Count
    node_rank: Count
    device_name: str = msgspec.field(name="device")  # the GPU's or the CPU's name
    device_id: str  # the GPU's UUID; empty on the CPU
    device_total_bytes: Count | None = None
    usable_cores: NonZero = 1.0  # affinity, cgroup quota and SLURM, whichever is least; of the node


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """One way that gradients take between ranks."""

    via: str  # as NCCL names it, without the number of a card: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/GDRDMA"; gloo's is "TCP"
    inter_node: bool = msgspec.field(name="across")  # between hosts
    link_type: str = msgspec.field(
        default="", name="over"
    )  # what P2P goes over, "NVLink" or "PCIe", and NET/IB, "InfiniBand" or "RoCE"; empty where nobody told


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The fingerprint of a job. ``places`` has one entry a rank, in rank order."""

    software: Software
    world_size: AtLeastOne
    nodes: AtLeastOne
    launcher: str  # python, torchrun, accelerate, slurm (torchrun inside a SLURM job)
    backend: str  # none, gloo, nccl
    device_type: DeviceType
    placements: list[RankPlacement] = msgspec.field(name="places")
    os: str = ""
    cpu: str = ""
    variables: dict[str, str] = {}  # those that change speed, by name: machine.variables lists them
    transport: list[Transport] = []  # empty where it is not known, and for one rank
    infiniband_devices: list[str] = msgspec.field(
        default=[], name="infiniband"
    )  # active devices of the first node, where every node has some
    health_unavailable_reason: str = msgspec.field(
        default="", name="health"
    )  # why health is unavailable, said once; empty when NVML answers
