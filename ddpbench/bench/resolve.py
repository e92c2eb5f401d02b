"""Filling in what was left automatic, from the workload and the machine."""

from __future__ import annotations

from typing import Any

import msgspec

from ddpbench.data.generated.arrays import GENERATED
from ddpbench.machine.host import usable_cores
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.loaders import REPLAY, SYNTHETIC, loader_spec
from ddpbench.record.registry import find_precision
from ddpbench.workloads import registry as workloads
from ddpbench.workloads.spec import WorkloadSpec

MAX_DEFAULT_WORKERS = 8

TRAINING_STEPS_CPU = 10
"""The steps of a whole training on processors, which take a hundred times as long over one."""


def resolve_config(config: Config, cuda: bool, local_world_size: int) -> ResolvedConfig:
    """``config`` with every automatic field filled in for this machine. Raises UsageError for unknown names."""
    spec = workloads.find_workload(config.workload)
    fresh, loader = bool(config.fresh), config.loader or default_loader(config, spec)
    automatic = {
        "loader": loader,
        "fresh": fresh,
        "validate": fresh or config.epochs is not None,
        "steps": training_steps(spec, cuda) if fresh and config.epochs is None else None,
        "lr": spec.lr,
        "momentum": spec.momentum,
        "weight_decay": spec.weight_decay,
        "batch_size": workload_batch_size(spec, cuda),
        "image_size": spec.image_size,
        "optimizer_impl": "fused",
        "channels_last": spec.convolutional,
        "workers": 0 if loader == "tensor" else default_workers(config.cores or usable_cores() / local_world_size),
        "warmup": 10 if cuda else 2,
    }
    unset: dict[str, Any] = {name: value for name, value in automatic.items() if getattr(config, name) is None}
    known: dict[str, Any] = {"precision": find_precision(config.precision).name, "device": "cuda" if cuda else "cpu"}
    if config.data_dir:
        known["data_dir"] = config.data_dir.rstrip("/") or "/"  # one folder has one name: a second call goes on with the first's rounds
    if loader_spec(loader).uses_threads and config.workers == 0:
        known["workers"] = 1  # it makes no batch in the trainer's own
    if loader == REPLAY:
        known["pin_memory"] = True  # in nothing else its batches wait
    return ResolvedConfig(**{**msgspec.structs.asdict(config), **known, **unset})


def default_loader(config: Config, spec: WorkloadSpec) -> str:
    """Files of one's own are read as most people do. Without any, the device alone is measured, unless accuracy is a figure."""
    if spec.dataset == "disc":
        return "tensor"  # a thousand points, which nobody reads from files
    if config.data_dir or ((config.fresh or config.epochs) and spec.dataset in GENERATED):
        return "torch"
    return SYNTHETIC


def training_steps(spec: WorkloadSpec, cuda: bool) -> int:
    """Steps of a round that is a training of its own: the same at every batch and on every machine, or two would not compare."""
    return spec.iterations if cuda else TRAINING_STEPS_CPU


def default_workers(cores: float) -> int:
    """Loader workers a rank that has ``cores``: those beside its own, between 1 and ``MOST_WORKERS``."""
    return max(1, min(MAX_DEFAULT_WORKERS, int(cores - 1)))


def workload_batch_size(spec: WorkloadSpec, cuda: bool) -> int:
    """Samples a rank a step, where nobody says how many."""
    return spec.batch_cuda if cuda else spec.batch_cpu


def default_batch_size(config: Config) -> int:
    """The same of a training whose device is not open yet."""
    import torch  # which no refusal before this one needs

    return workload_batch_size(workloads.find_workload(config.workload), config.device != "cpu" and torch.cuda.is_available())
