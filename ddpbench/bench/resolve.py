"""Fills in the automatic fields of a Config from the workload and the machine."""

from __future__ import annotations

from typing import Any

import msgspec

from ddpbench.data.generated.arrays import GENERATED
from ddpbench.machine.host import usable_cores
from ddpbench.record.config import USUAL_VALUES, Config, ResolvedConfig
from ddpbench.record.loaders import DEFAULT_LOADER, REPLAY, SYNTHETIC, LoaderSpec, loader_spec
from ddpbench.record.registry import find_precision
from ddpbench.workloads import registry as workloads
from ddpbench.workloads.spec import WorkloadSpec

MAX_DEFAULT_WORKERS = 8

TRAINING_STEPS_CPU = 10
"""Steps of a training from scratch on CPU ranks, where a step takes a hundred times as long."""


def resolve_config(config: Config, cuda: bool, local_world_size: int) -> ResolvedConfig:
    """``config`` with every automatic field filled in for this machine. Raises UsageError for unknown names."""
    spec = workloads.find_workload(config.workload)
    fresh, loader = bool(config.fresh), config.loader or default_loader(config, spec)
    automatic = {
        **USUAL_VALUES,
        "loader": loader,
        "fresh": fresh,
        "validate": fresh or config.epochs is not None,
        "steps": training_steps(spec, cuda) if fresh and config.epochs is None else None,
        "lr": spec.lr,
        "momentum": spec.momentum,
        "weight_decay": spec.weight_decay,
        "batch_size": workload_batch_size(spec, cuda),
        "image_size": spec.image_size,
        "channels_last": spec.convolutional,
        "workers": default_workers(loader_spec(loader), config.cores or usable_cores() / local_world_size),
        "warmup": 10 if cuda else 2,
    }
    unset: dict[str, Any] = {name: value for name, value in automatic.items() if getattr(config, name) is None}
    known: dict[str, Any] = {"precision": find_precision(config.precision).name, "device": "cuda" if cuda else "cpu"}
    if config.data_dir:
        known["data_dir"] = config.data_dir.rstrip("/") or "/"  # one name per folder: the same command resumes its rounds
    if loader_spec(loader).uses_threads and config.workers == 0:
        known["workers"] = 1  # this loader makes no batches in the main thread
    if loader == REPLAY:
        known["pin_memory"] = True  # replayed batches always wait in pinned memory
    resolved = ResolvedConfig(**{**msgspec.structs.asdict(config), **known, **unset})
    if not (config.fast and cuda):
        return resolved
    from ddpbench.bench.fast import choose_fast_settings  # builds models: the launcher, which resolves no --fast, imports no torch

    return choose_fast_settings(config, resolved)


def default_loader(config: Config, spec: WorkloadSpec) -> str:
    """The most common loader for a folder of files. Without one, synthetic data, unless accuracy is measured."""
    if spec.dataset == "disc":
        return "tensor"  # a thousand points, never read from files
    if config.data_dir or ((config.fresh or config.epochs) and spec.dataset in GENERATED):
        return DEFAULT_LOADER
    return SYNTHETIC


def training_steps(spec: WorkloadSpec, cuda: bool) -> int:
    """Steps of a round that trains from scratch: the same for every batch size and machine, so that figures compare."""
    return spec.iterations if cuda else TRAINING_STEPS_CPU


def default_workers(loader: LoaderSpec, cores: float) -> int:
    """Loader workers for a rank with ``cores`` cores: one core less than it has, between 1 and ``MAX_DEFAULT_WORKERS``.

    0 if the whole dataset is on the device.
    """
    if loader.device_resident and loader.reads_dataset:
        return 0
    return max(1, min(MAX_DEFAULT_WORKERS, int(cores - 1)))


def workload_batch_size(spec: WorkloadSpec, cuda: bool) -> int:
    """Default samples per rank and step."""
    return spec.batch_cuda if cuda else spec.batch_cpu


def default_batch_size(config: Config) -> int:
    """Default batch size before the device of the training is open."""
    import torch  # imported here: earlier usage errors need no torch

    return workload_batch_size(workloads.find_workload(config.workload), config.device != "cpu" and torch.cuda.is_available())
