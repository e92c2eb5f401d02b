"""Small real trainings for tests: a world of one, a tiny CNN, batches in memory."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch import nn

from ddpbench.data.loader import NoWorkersMixin
from ddpbench.distributed.rank_store import RankInfo, RankStore
from ddpbench.distributed.world import World, rendezvous
from ddpbench.machine.device import open_device
from ddpbench.machine.fingerprint import collect_software
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.environment import RankPlacement, Software
from ddpbench.record.record import DatasetInfo
from ddpbench.training.session import OffloadedState, Session

BATCH, SIDE, CLASSES = 8, 16, 4


def world(device: str = "cpu", seat: RankEnv | None = None) -> World:
    """The World of this launch after rendezvous."""
    seat = seat or from_env()
    opened = open_device(device, seat, share_gpu=False)
    place = RankPlacement(
        rank=seat.rank,
        host=seat.host,
        pid=os.getpid(),
        local_rank=seat.local_rank,
        node_rank=0,
        device_name=opened.name,
        device_id=opened.uuid,
    )
    met = rendezvous(seat, opened, RankInfo(place, collect_software(opened.is_cuda)), False, 30, 60)
    met.init_process_group()
    return met


def world_of_one(device: str = "cpu") -> World:
    """A World of this process without a process group."""
    return world(device, RankEnv(host="here"))


def tiny_net() -> nn.Module:
    """Convolution, batch norm, linear: one layer of each kind that precisions treat differently."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)
    )


def unjoined_world(backend: str, rank: int = 0) -> World:
    """The World of a rank that has not joined its process group of ``backend``."""
    seat = RankEnv(rank=rank, world_size=rank + 1)
    device = open_device("cpu", seat, share_gpu=False)
    place = RankPlacement(rank=rank, host="n1", pid=os.getpid(), local_rank=rank, node_rank=0, device_name=device.name, device_id="")
    notice = RankInfo(place, Software(ddpbench="0.1.0", python="3.12", torch="2.11"))
    return World(seat, device, RankStore(dist.HashStore(), seat), [notice], backend, 1.0)


def wide_net() -> nn.Module:
    """Few layers with much memory: one has 64 MiB of float32 weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)
    )


class InMemory(NoWorkersMixin):
    """One fixed batch per rank on the device."""

    data = DatasetInfo(loader="synthetic", num_batches=1)

    def __init__(self, device: torch.device, scale: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(1 + int(os.environ.get("RANK", "0")))
        self.images = (torch.randn(BATCH, 3, SIDE, SIDE, generator=generator) * scale).to(device)
        self.labels = torch.randint(0, CLASSES, (BATCH,), generator=generator).to(device)

    def next_batch(self, on_host_ready: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
        on_host_ready()
        return self.images, self.labels


def config(device: str = "cpu", **asked: object) -> ResolvedConfig:
    """Resolved config of the tiny training."""
    recipe = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "optimizer_impl": "fused"}
    settled = {
        "workload": "tiny",
        "batch_size": BATCH,
        "image_size": SIDE,
        "channels_last": True,
        "loader": "synthetic",
        "workers": 0,
        "warmup": 1,
        **recipe,
    }
    return ResolvedConfig(**{**settled, "device": device, **asked})  # type: ignore[arg-type]


def session(
    world: World, settled: ResolvedConfig, model: nn.Module | None = None, parked: OffloadedState | None = None, scale: float = 1.0
) -> Session:
    return Session(
        settled, model or tiny_net(), nn.CrossEntropyLoss(), InMemory(world.device.torch_device, scale), world, ProgressMarker(60.0), parked
    )
