"""The ranks of a launch: rendezvous, checks that they match, and collectives on the host."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import msgspec
import torch
from torch import distributed as dist

from ddpbench.distributed.rank_store import RankInfo, RankStore, open_store
from ddpbench.machine.device import Device, open_device
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.environment import RankPlacement
from ddpbench.record.errors import UsageError

Value = TypeVar("Value")

RELEASE_S = 0.05  # in which a thread of gloo gets the GIL, to release its last tensors


@dataclass(frozen=True)
class World:
    """All ranks of a launch after the rendezvous, or the first of them.

    Its collectives run on CPU tensors with gloo, never over the GPUs' network.
    """

    rank_env: RankEnv
    device: Device
    store: RankStore
    rank_infos: list[RankInfo]
    backend: str  # none, gloo, nccl
    collective_timeout_s: float  # torch's timeout of one collective
    group: dist.ProcessGroup | None = None  # of a subset of ranks; None for all

    @property
    def rank(self) -> int:
        return self.rank_env.rank

    @property
    def size(self) -> int:
        return len(self.rank_infos)

    @property
    def participates(self) -> bool:
        """Whether this rank belongs to this World."""
        return self.rank < self.size

    @property
    def is_distributed(self) -> bool:
        """Whether there is a process group: always under a launcher, even for a world size of 1."""
        return self.backend != "none"

    @property
    def placements(self) -> list[RankPlacement]:
        return [info.placement for info in self.rank_infos]

    @property
    def placement(self) -> RankPlacement:
        """Where this rank runs."""
        return self.rank_infos[self.rank].placement

    def for_device(self, device_type: str) -> World:
        """This World on the CPU if ``device_type`` is ``cpu`` and the ranks have GPUs; else this World unchanged."""
        if device_type == self.device.torch_device.type:
            return self
        device = open_device(device_type, self.rank_env, share_gpu=False)
        device_fields = {"device_name": device.name, "device_id": device.uuid, "device_total_bytes": device.total_bytes}
        infos = [RankInfo(msgspec.structs.replace(info.placement, **device_fields), info.software) for info in self.rank_infos]
        return replace(self, device=device, rank_infos=infos)

    def subset(self, num_ranks: int) -> World:
        """The World of the first ``num_ranks`` ranks. Its collectives need ``new_group`` first."""
        return replace(self, rank_infos=self.rank_infos[:num_ranks])

    def new_group(self) -> World:
        """This World with a new process group. All ranks of the launch must call it, participating or not."""
        ranks, limit = list(range(self.size)), timedelta(seconds=self.collective_timeout_s)
        group = dist.new_group(ranks, timeout=limit, backend=self._backend_spec)
        return replace(self, group=group if isinstance(group, dist.ProcessGroup) else None)

    @property
    def _backend_spec(self) -> str:
        return f"cpu:gloo,cuda:{self.backend}" if self.device.is_cuda else "gloo"

    def init_process_group(self) -> None:
        """Create the process group. May hang if it uses another network interface than the rendezvous: run under a watchdog."""
        if not self.is_distributed:
            return
        dist.init_process_group(
            self._backend_spec,
            store=dist.PrefixStore("group", open_store(self.rank_env, self.collective_timeout_s)),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=self.collective_timeout_s),
            device_id=self.device.torch_device if self.backend == "nccl" else None,
        )

    def barrier(self) -> None:
        """Wait until every rank has synchronised its device and reached this call."""
        self.device.synchronize()
        if self.is_distributed:
            # not dist.barrier, which runs on the GPU with NCCL if the process group has a device_id
            dist.all_reduce(torch.zeros(1), group=self.group)

    def all_max(self, value: float) -> float:
        """The maximum of ``value`` over the ranks, on every rank."""
        if not self.is_distributed:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return float(tensor)

    def all_min(self, value: float) -> float:
        """The minimum of ``value`` over the ranks, on every rank."""
        return -self.all_max(-value)

    def any_rank(self, flag: bool) -> bool:
        """On every rank: whether ``flag`` is true on at least one."""
        return bool(self.all_max(float(flag)))

    def all_sum(self, value: float) -> float:
        """The sum of ``value`` over the ranks, on every rank."""
        if not self.is_distributed:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return float(tensor)

    def gather(self, value: Value) -> list[Value]:
        """Every rank's ``value``, in rank order, on rank 0; an empty list on the others. ``value`` must be picklable."""
        if not self.is_distributed:
            return [value]
        values = [value] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self.group)
        return values or []

    def close(self) -> None:
        """Deregister this rank and destroy the process group."""
        self.store.deregister()
        if dist.is_initialized():
            dist.destroy_process_group()
            # DistributedDataParallel keeps gloo's threads alive. One that waits for the GIL when the interpreter ends would abort it
            # ("terminate called without an active exception").
            time.sleep(RELEASE_S)


def rendezvous(
    rank_env: RankEnv, device: Device, info: RankInfo, share_gpu: bool, rendezvous_timeout_s: float, collective_timeout_s: float
) -> World:
    """The World of all ranks, after they have registered in the store. ``World.init_process_group`` creates their process group.

    ``rendezvous_timeout_s`` limits the wait for all ranks. ``collective_timeout_s`` is torch's timeout of one collective; it must
    be longer than the hang timeout, because NCCL's own watchdog aborts the process, which cannot be caught. Raises UsageError
    if ranks are missing or do not match.
    """
    store = RankStore(open_store(rank_env, rendezvous_timeout_s, serve=True), rank_env)
    store.register(info)
    infos = disambiguate_hosts(store.wait_for_ranks(rendezvous_timeout_s))
    check_ranks_match(infos, share_gpu)
    backend = "none"
    if rank_env.launched:
        backend = "nccl" if device.is_cuda and not share_gpu else "gloo"  # NCCL refuses two ranks on one GPU
    return World(rank_env, device, store, infos, backend, collective_timeout_s)


def disambiguate_hosts(infos: list[RankInfo]) -> list[RankInfo]:
    """Rename hosts to ``vm#0``, ``vm#1`` ... if different machines share a host name, as rented ones often do.

    Reports use these names.
    """
    machines, nodes = defaultdict[str, set[str]](set), defaultdict[str, set[int]](set)
    for info in infos:
        machines[info.placement.host].add(info.machine_id)
        nodes[info.placement.host].add(info.placement.node_rank)
    shared = {host for host in machines if len(machines[host]) > 1 and len(nodes[host]) > 1}
    return [_with_node_suffix(info) if info.placement.host in shared else info for info in infos]


def _with_node_suffix(info: RankInfo) -> RankInfo:
    host = f"{info.placement.host}#{info.placement.node_rank}"
    return msgspec.structs.replace(info, placement=msgspec.structs.replace(info.placement, host=host))


SAME_SOFTWARE_HINT = "use the same container or module on every node"
SAME_FILES_HINT = "use the same files on every node, and do not add or remove any meanwhile"
SAME_COMMAND_HINT = "use the same command on every node"


def check_ranks_match(infos: list[RankInfo], share_gpu: bool) -> None:
    """Raise UsageError, with a two-row table, if ranks differ in requested flags, software, GPU model or data.

    Also raises UsageError if two ranks are on one GPU and ``share_gpu`` is false.
    """
    first = infos[0]
    for other in infos[1:]:
        first_values, other_values = _compared_values(first), _compared_values(other)
        if differing := [name for name in {**first_values, **other_values} if first_values.get(name) != other_values.get(name)]:
            rows = [
                f"rank {placement.rank} ({placement.host})  " + "  ".join(f"{name} {values.get(name, 'not set')}" for name in differing)
                for placement, values in ((first.placement, first_values), (other.placement, other_values))
            ]
            raise UsageError("ranks differ:", _mismatch_hint(differing, first.requested.keys() | other.requested.keys()), rows)
    rank_of_gpu: dict[str, int] = {}
    for placement in (info.placement for info in infos):
        if placement.device_id and placement.device_id in rank_of_gpu and not share_gpu:
            raise UsageError(
                f"ranks {rank_of_gpu[placement.device_id]} and {placement.rank} are on one GPU ({placement.host}, {placement.device_id})",
                "use one rank per GPU, or allow sharing with --share-gpu",
            )
        rank_of_gpu[placement.device_id] = placement.rank


def _compared_values(info: RankInfo) -> dict[str, str | None]:
    software = info.software
    local_values = {"device": info.placement.device_name, "data": info.data_fingerprint}
    return {**info.requested, **local_values, **{name: getattr(software, name) for name in software.__struct_fields__}}


def _mismatch_hint(different: Sequence[str], flags: Collection[str]) -> str:
    if any(name in flags for name in different):
        return SAME_COMMAND_HINT
    return SAME_FILES_HINT if different == ["data"] else SAME_SOFTWARE_HINT
