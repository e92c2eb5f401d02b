"""From a settled Config to a Loader; and every refusal that needs no device, before the ranks meet."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ddpbench.data import cifar10, folder
from ddpbench.data.catalogue import find
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.names import resolve

if TYPE_CHECKING:
    import torch

    from ddpbench.data.loader import Loader


_COUNT: dict[str, Callable[[str, int, int], int]] = {"imagenet": folder.count, "cifar10": cifar10.count}
"""How the images of each data set are counted: (directory, classes of the model, enough)."""


def check(config: Config, dataset: str, classes: int, world_size: int) -> None:
    """Raises UsageError where the loader of ``config`` could not feed ``world_size`` ranks.

    Imports no torch, and counts images only until there are enough for one batch of every rank.
    """
    spec = find(config.loader or "")
    if dataset not in spec.datasets:
        raise UsageError(f"loader '{spec.name}' does not read {dataset}", "use --loader torch or --loader synthetic")
    if spec.module and not _importable(spec.module):
        raise UsageError(
            f"loader '{spec.name}' needs {spec.module}, which is not installed",
            f"pip install 'ddpbench[{spec.needs}]' (dali-cuda12 where torch is built for CUDA 12), or use --loader torch",
        )
    if not spec.reads_files:
        return
    if config.data_dir is None:
        raise UsageError(f"loader '{spec.name}' reads files, and no folder was named", "add --data-dir DIR, or use --loader synthetic")
    assert config.batch_size, "settled"
    batch, needed = config.batch_size, config.batch_size * world_size
    found = _COUNT[dataset](config.data_dir, classes, needed)
    if found < needed:
        raise UsageError(
            f"too few images in '{config.data_dir}': {found:,} found, {needed:,} needed for one step of {batch:,} x {world_size:,}",
            "make the batch smaller (-b), or add images",
        )


def open_loader(config: Config, dataset: str, classes: int, rank: int, world_size: int, device: torch.device) -> Loader:
    """The loader of ``config``, which is settled and checked, for one rank on ``device``; its workers start at once."""
    opened: Loader = resolve(find(config.loader or "").open)(config, dataset, classes, rank, world_size, device)
    return opened


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
