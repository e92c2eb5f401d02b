"""The machine and software of a record: one part per job, one part per rank."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.private import FreeText, GpuId, HostName
from ddpbench.record.ranges import AtLeastOne, Count, NonZero

DeviceType = Literal["cuda", "cpu"]


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """Software versions, which must match on all ranks."""

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
    host: HostName
    pid: Count
    local_rank: Count
    node_rank: Count
    device_name: str  # the GPU's or the CPU's name
    device_id: GpuId  # the GPU's UUID; empty on the CPU
    device_total_bytes: Count | None = None
    usable_cores: NonZero = 1.0  # of the node: the minimum of affinity, cgroup quota and SLURM allocation


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """One transport of gradients between ranks."""

    via: str  # NCCL's name without the NIC index: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/GDRDMA"; "TCP" for gloo
    inter_node: bool  # between hosts
    link_type: str = ""  # "NVLink" or "PCIe" for P2P, "InfiniBand" or "RoCE" for NET/IB; empty if unknown


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of a job. ``placements`` has one entry per rank, in rank order."""

    software: Software
    world_size: AtLeastOne
    nodes: AtLeastOne
    launcher: str  # python, torchrun, accelerate, slurm (torchrun inside a SLURM job)
    backend: str  # none, gloo, nccl
    device_type: DeviceType
    placements: list[RankPlacement]
    os: str = ""
    cpu: str = ""
    emulates_bfloat16: bool = False  # the CPU, which then trains much faster in float32
    variables: dict[str, FreeText] = {}  # those that affect speed: see machine.speed_variables
    transport: list[Transport] = []  # empty if unknown, and for one rank
    infiniband_devices: list[str] = []  # active devices of the first node; empty unless every node has some
    health_unavailable_reason: FreeText = ""  # why GPU health is unavailable; empty if NVML works
