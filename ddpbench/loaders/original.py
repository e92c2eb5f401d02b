"""What is read of a loader that is replaced: its order, its dataset, and whether it is one that can be replaced."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, default_collate

from ddpbench.loaders.errors import NotSupportedError
from ddpbench.machine.variables import EnvVar


def check_plain(loader: DataLoader[Any]) -> None:
    """Raises NotSupportedError if its batches are other than torch's DataLoader makes them by default."""
    if type(loader) is not DataLoader:
        raise NotSupportedError(f"its class is {type(loader).__name__}")
    if loader.batch_sampler is None:
        raise NotSupportedError("it makes no batches of samples")
    if loader.collate_fn is not default_collate:
        raise NotSupportedError("it has a collate function of its own")
    if loader.worker_init_fn is not None:
        raise NotSupportedError("it has a worker_init_fn, which may change the dataset")


def sample_order(loader: DataLoader[Any]) -> dict[str, Any]:
    """The arguments of a DataLoader that decide which samples are in a batch."""
    if loader.batch_size is None:
        return {"batch_sampler": loader.batch_sampler}
    # torch makes the same batch sampler of it, and libraries know the parts
    return {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}


def unwrapped(dataset: Any) -> tuple[Any, Sequence[int] | None]:
    """The dataset inside of subsets, and the indices that these leave of it; None for all."""
    if type(dataset) is not Subset:
        return dataset, None
    inner, indices = unwrapped(dataset.dataset)
    return inner, dataset.indices if indices is None else [indices[each] for each in dataset.indices]


def ranks_on_this_node() -> int:
    """As the launcher says; 1 without one."""
    return int(os.environ.get(EnvVar.LOCAL_WORLD_SIZE) or 1)


def current_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
