"""The ranks together: meeting, refusing unequal ones, gathering off the clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import msgspec
import torch
from torch import distributed as dist

from ddpbench.distributed.rank_store import Board, Notice, open_store
from ddpbench.machine.device import Device, open_device
from ddpbench.machine.rank_env import Seat
from ddpbench.record.environment import RankPlace
from ddpbench.record.errors import UsageError

Own = TypeVar("Own")


@dataclass(frozen=True)
class World:
    """All ranks of a launch that have met, or the first of them. Everything here goes over the host's network, never over the GPU's."""

    seat: Seat
    device: Device
    board: Board
    notices: list[Notice]
    backend: str  # none, gloo, nccl
    collective_s: float  # how long torch lets one collective take
    group: dist.ProcessGroup | None = None  # of the first ranks alone; None for all

    @property
    def rank(self) -> int:
        return self.seat.rank

    @property
    def size(self) -> int:
        return len(self.notices)

    @property
    def takes_part(self) -> bool:
        """Whether this rank is one of them."""
        return self.rank < self.size

    @property
    def distributed(self) -> bool:
        """Whether there is a process group: every launcher makes one, also for a world of one."""
        return self.backend != "none"

    @property
    def places(self) -> list[RankPlace]:
        return [notice.place for notice in self.notices]

    @property
    def place(self) -> RankPlace:
        """Where this rank stands."""
        return self.notices[self.rank].place

    def on(self, device_type: str) -> World:
        """The same ranks on their processors, where they have met with GPUs and ``device_type`` is ``cpu``; else this one."""
        if device_type == self.device.torch.type:
            return self
        device = open_device(device_type, self.seat, share_gpu=False)
        place = {"device": device.name, "device_id": device.id, "device_total_bytes": device.total_bytes}
        notices = [Notice(msgspec.structs.replace(notice.place, **place), notice.software) for notice in self.notices]
        return replace(self, device=device, notices=notices)

    def first(self, ranks: int) -> World:
        """The first ``ranks`` ranks. They need a process group of their own before they can talk."""
        return replace(self, notices=self.notices[:ranks])

    def apart(self) -> World:
        """The same with a process group of its own. Every rank of the launch calls this, whether it takes part or not."""
        ranks, limit = list(range(self.size)), timedelta(seconds=self.collective_s)
        group = dist.new_group(ranks, timeout=limit, backend=self._backends)
        return replace(self, group=group if isinstance(group, dist.ProcessGroup) else None)

    @property
    def _backends(self) -> str:
        return f"cpu:gloo,cuda:{self.backend}" if self.device.cuda else "gloo"

    def join(self) -> None:
        """Makes the process group. Nodes that met may still be unable to talk here, over another interface: to be watched over."""
        if not self.distributed:
            return
        dist.init_process_group(
            self._backends,
            store=dist.PrefixStore("group", open_store(self.seat, self.collective_s)),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=self.collective_s),
            device_id=self.device.torch if self.backend == "nccl" else None,
        )

    def barrier(self) -> None:
        """Returns when every rank's device is done and every rank is here."""
        self.device.synchronize()
        if self.distributed:
            dist.all_reduce(torch.zeros(1), group=self.group)

    def most(self, value: float) -> float:
        """The greatest ``value`` over the ranks, on every rank."""
        if not self.distributed:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return float(tensor)

    def least(self, value: float) -> float:
        """The smallest ``value`` over the ranks, on every rank."""
        return -self.most(-value)

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is true on one of the ranks, on every rank."""
        return bool(self.most(float(flag)))

    def total(self, value: float) -> float:
        """The sum of ``value`` over the ranks, on every rank."""
        if not self.distributed:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return float(tensor)

    def gather(self, own: Own) -> list[Own]:
        """Every rank's ``own``, in rank order, on rank 0; an empty list on the others. It must be of a kind that pickle can carry."""
        if not self.distributed:
            return [own]
        told = [own] * self.size if self.rank == 0 else None
        dist.gather_object(own, told, dst=0, group=self.group)
        return told or []

    def close(self) -> None:
        """Says goodbye on the board and takes the process group down."""
        self.board.leave()
        if dist.is_initialized():
            dist.destroy_process_group()


def meet(seat: Seat, device: Device, notice: Notice, share_gpu: bool, meeting_s: float, collective_s: float) -> World:
    """Brings the ranks together on the board; ``World.join`` makes their process group.

    Waits ``meeting_s`` for all of them, refuses mixed ones, and lets a collective of torch's take ``collective_s``, which must
    be longer than the hang timeout: NCCL's own watchdog aborts the process and cannot be caught. Raises UsageError.
    """
    board = Board(open_store(seat, meeting_s, serve=True), seat)
    board.arrive(notice)
    notices = told_apart(board.wait_for_all(meeting_s))
    refuse_mixed(notices, share_gpu)
    backend = "none"
    if seat.launched:
        backend = "nccl" if device.cuda and not share_gpu else "gloo"  # NCCL refuses two ranks on one GPU
    return World(seat, device, board, notices, backend, collective_s)


def told_apart(notices: list[Notice]) -> list[Notice]:
    """``vm#0`` and ``vm#1`` where nodes that are not one machine have one name, as rented ones often do; all that is told goes by it."""
    machines, nodes = defaultdict[str, set[str]](set), defaultdict[str, set[int]](set)
    for notice in notices:
        machines[notice.place.host].add(notice.machine)
        nodes[notice.place.host].add(notice.place.node_rank)
    shared = {host for host in machines if len(machines[host]) > 1 and len(nodes[host]) > 1}
    return [_renamed(notice) if notice.place.host in shared else notice for notice in notices]


def _renamed(notice: Notice) -> Notice:
    host = f"{notice.place.host}#{notice.place.node_rank}"
    return msgspec.structs.replace(notice, place=msgspec.structs.replace(notice.place, host=host))


SAME_SOFTWARE = "the same container or module on every node cures it"
SAME_FILES = "the same files on every node, and none that come or go"
SAME_COMMAND = "the same command on every node"


def refuse_mixed(notices: list[Notice], share_gpu: bool) -> None:
    """Raises UsageError with a two-row table where ranks differ in what they were asked, software, GPU model or data.

    And where two are on one GPU.
    """
    first = notices[0]
    for other in notices[1:]:
        ours, theirs = _told(first), _told(other)
        if different := [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]:
            rows = [
                f"rank {place.rank} ({place.host})  " + "  ".join(f"{name} {values.get(name, 'not given')}" for name in different)
                for place, values in ((first.place, ours), (other.place, theirs))
            ]
            raise UsageError("ranks differ:", _cure(different, first.asked.keys() | other.asked.keys()), rows)
    taken: dict[str, int] = {}
    for place in (notice.place for notice in notices):
        if place.device_id and place.device_id in taken and not share_gpu:
            raise UsageError(
                f"ranks {taken[place.device_id]} and {place.rank} are on one GPU ({place.host}, {place.device_id})",
                "one rank a GPU, or allow it with --share-gpu",
            )
        taken[place.device_id] = place.rank


def _told(notice: Notice) -> dict[str, str | None]:
    software = notice.software
    there = {"device": notice.place.device, "data": notice.data}
    return {**notice.asked, **there, **{name: getattr(software, name) for name in software.__struct_fields__}}


def _cure(different: Sequence[str], flags: Collection[str]) -> str:
    if any(name in flags for name in different):
        return SAME_COMMAND
    return SAME_FILES if different == ["data"] else SAME_SOFTWARE
