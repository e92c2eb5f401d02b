"""From a settled Config to a Loader; and every refusal that needs no device, before the ranks meet."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ddpbench.data import folder, sets
from ddpbench.data.catalogue import LOADERS, LoaderSpec, find
from ddpbench.data.fetch import fetch
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.names import resolve

if TYPE_CHECKING:
    import torch

    from ddpbench.data.loader import Loader


def check(config: Config, dataset: str, classes: int, world_size: int) -> None:
    """Raises UsageError where the loader of ``config`` could not feed ``world_size`` ranks.

    Imports no torch unless there is something to download. Images of a tree are counted only until there are enough for one
    batch of every rank; sets that fit in memory are read whole.
    """
    spec = find(config.loader or "")
    _check_loader(spec, dataset)
    if not spec.reads_files:
        return
    if config.download:
        fetch(dataset, config.data_dir)
    assert config.batch_size, "settled"
    batch, needed = config.batch_size, config.batch_size * world_size
    found = _count(spec, config.data_dir, dataset, classes, needed)
    if found < needed:
        where = f"in '{config.data_dir}'" if config.data_dir else "in the data set"
        raise UsageError(
            f"too few samples {where}: {found:,} found, {needed:,} needed for one step of {batch:,} x {world_size:,}",
            "make the batch smaller (-b), or add images",
        )


def _check_loader(spec: LoaderSpec, dataset: str) -> None:
    if dataset not in spec.datasets:
        able = [f"--loader {other.name}" for other in LOADERS.values() if dataset in other.datasets]
        raise UsageError(f"loader '{spec.name}' does not read {dataset}", f"use {' or '.join(able)}")
    if spec.module and not _importable(spec.module):
        raise UsageError(
            f"loader '{spec.name}' needs {spec.module}, which is not installed",
            f"pip install 'ddpbench[{spec.needs}]' (dali-cuda12 where torch is built for CUDA 12), or use --loader torch",
        )


def _count(spec: LoaderSpec, directory: str | None, dataset: str, classes: int, enough: int) -> int:
    if dataset != "imagenet":
        return sets.check(dataset, directory, classes)
    if directory is None:
        raise UsageError(f"loader '{spec.name}' reads files, and no folder was named", "add --data-dir DIR, or use --loader synthetic")
    return folder.count(directory, classes, enough)


def open_loader(config: Config, dataset: str, classes: int, rank: int, world_size: int, device: torch.device) -> Loader:
    """The loader of ``config``, which is settled and checked, for one rank on ``device``; its workers start at once.

    Every call opens it at the first batch of epoch 0.
    """
    opened: Loader = resolve(find(config.loader or "").open)(config, dataset, classes, rank, world_size, device)
    return opened


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
