"""Filling in what was left automatic, from the workload and the machine."""

from __future__ import annotations

import msgspec

from ddpbench.data import catalogue as loaders
from ddpbench.machine.host import usable_cores
from ddpbench.record.config import Config
from ddpbench.workloads import catalogue as workloads

MOST_WORKERS = 8


def settle(config: Config, cuda: bool, local_world_size: int) -> Config:
    """``config`` with every automatic field filled in for this machine. Raises UsageError for unknown names."""
    spec = workloads.find(config.workload)
    loader = config.loader or ("torch" if config.data_dir else "synthetic")
    loaders.find(loader)
    automatic = {
        "batch_size": spec.batch_cuda if cuda else spec.batch_cpu,
        "image_size": spec.image_size,
        "optimizer_impl": "fused",
        "channels_last": spec.convolutional,
        "workers": default_workers(usable_cores(), local_world_size),
        "warmup": 10 if cuda else 2,
    }
    unset = {name: value for name, value in automatic.items() if getattr(config, name) is None}
    return msgspec.structs.replace(config, loader=loader, device="cuda" if cuda else "cpu", **unset)


def default_workers(cores: float, local_world_size: int) -> int:
    """Loader workers a rank: the cores that a rank has beside its own, between 1 and ``MOST_WORKERS``."""
    return max(1, min(MOST_WORKERS, int(cores / local_world_size - 1)))
