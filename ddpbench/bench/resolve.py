"""Filling in what was left automatic, from the workload and the machine."""

from __future__ import annotations

from typing import Any

import msgspec

from ddpbench.data.generated.arrays import MADE
from ddpbench.machine.host import usable_cores
from ddpbench.record.config import Config
from ddpbench.record.loaders import REPLAY, SYNTHETIC, spec_of
from ddpbench.record.registry import precision
from ddpbench.record.resolved import Settled
from ddpbench.workloads import registry as workloads
from ddpbench.workloads.spec import WorkloadSpec

MOST_WORKERS = 8

ITERATIONS_CPU = 10
"""The steps of a whole training on processors, which take a hundred times as long over one."""


def settle(config: Config, cuda: bool, local_world_size: int) -> Settled:
    """``config`` with every automatic field filled in for this machine. Raises UsageError for unknown names."""
    spec = workloads.find(config.workload)
    fresh, loader = bool(config.fresh), config.loader or default_loader(config, spec)
    automatic = {
        "loader": loader,
        "fresh": fresh,
        "validate": fresh or config.epochs is not None,
        "steps": iterations(spec, cuda) if fresh and config.epochs is None else None,
        "lr": spec.lr,
        "momentum": spec.momentum,
        "weight_decay": spec.weight_decay,
        "batch_size": batch_of(spec, cuda),
        "image_size": spec.image_size,
        "optimizer_impl": "fused",
        "channels_last": spec.convolutional,
        "workers": 0 if loader == "tensor" else default_workers(config.cores or usable_cores() / local_world_size),
        "warmup": 10 if cuda else 2,
    }
    unset: dict[str, Any] = {name: value for name, value in automatic.items() if getattr(config, name) is None}
    known: dict[str, Any] = {"precision": precision(config.precision).name, "device": "cuda" if cuda else "cpu"}
    if config.data_dir:
        known["data_dir"] = config.data_dir.rstrip("/") or "/"  # one folder has one name: a second call goes on with the first's rounds
    if spec_of(loader).threaded and config.workers == 0:
        known["workers"] = 1  # it makes no batch in the trainer's own
    if loader == REPLAY:
        known["pin_memory"] = True  # in nothing else its batches wait
    return Settled(**{**msgspec.structs.asdict(config), **known, **unset})


def default_loader(config: Config, spec: WorkloadSpec) -> str:
    """Files of one's own are read as most people do. Without any, the device alone is measured, unless accuracy is a figure."""
    if spec.dataset == "disc":
        return "tensor"  # a thousand points, which nobody reads from files
    if config.data_dir or ((config.fresh or config.epochs) and spec.dataset in MADE):
        return "torch"
    return SYNTHETIC


def iterations(spec: WorkloadSpec, cuda: bool) -> int:
    """Steps of a round that is a training of its own: the same at every batch and on every machine, or two would not compare."""
    return spec.iterations if cuda else ITERATIONS_CPU


def default_workers(cores: float) -> int:
    """Loader workers a rank that has ``cores``: those beside its own, between 1 and ``MOST_WORKERS``."""
    return max(1, min(MOST_WORKERS, int(cores - 1)))


def batch_of(spec: WorkloadSpec, cuda: bool) -> int:
    """Samples a rank a step, where nobody says how many."""
    return spec.batch_cuda if cuda else spec.batch_cpu


def default_batch(config: Config) -> int:
    """The same of a training whose device is not open yet."""
    import torch  # which no refusal before this one needs

    return batch_of(workloads.find(config.workload), config.device != "cpu" and torch.cuda.is_available())
