"""Filling in what was left automatic, from the workload and the machine."""

from __future__ import annotations

import msgspec

from ddpbench.data.made import MADE
from ddpbench.machine.host import usable_cores
from ddpbench.record.catalogue import precision
from ddpbench.record.config import Config
from ddpbench.workloads import catalogue as workloads
from ddpbench.workloads.spec import WorkloadSpec

MOST_WORKERS = 8


def settle(config: Config, cuda: bool, local_world_size: int) -> Config:
    """``config`` with every automatic field filled in for this machine. Raises UsageError for unknown names."""
    spec = workloads.find(config.workload)
    fresh, loader = bool(config.fresh), config.loader or default_loader(config, spec)
    automatic = {
        "loader": loader,
        "fresh": fresh,
        "validate": fresh or config.epochs is not None,
        "lr": spec.lr,
        "momentum": spec.momentum,
        "weight_decay": spec.weight_decay,
        "batch_size": spec.batch_cuda if cuda else spec.batch_cpu,
        "image_size": spec.image_size,
        "optimizer_impl": "fused",
        "channels_last": spec.convolutional,
        "workers": 0 if loader == "tensor" else default_workers(config.cores or usable_cores() / local_world_size),
        "warmup": 10 if cuda else 2,
    }
    unset = {name: value for name, value in automatic.items() if getattr(config, name) is None}
    return msgspec.structs.replace(config, precision=precision(config.precision).name, device="cuda" if cuda else "cpu", **unset)


def default_loader(config: Config, spec: WorkloadSpec) -> str:
    """Files of one's own are read as most people do. Without any, the device alone is measured, unless accuracy is a figure."""
    if spec.dataset == "disc":
        return "tensor"  # a thousand points, which nobody reads from files
    if config.data_dir or ((config.fresh or config.epochs) and spec.dataset in MADE):
        return "torch"
    return "synthetic"


def default_workers(cores: float) -> int:
    """Loader workers a rank that has ``cores``: those beside its own, between 1 and ``MOST_WORKERS``."""
    return max(1, min(MOST_WORKERS, int(cores - 1)))
