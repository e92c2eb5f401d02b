"""Where a batch comes from: a DataLoader of the script, and the size of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

DEFAULT_PREFETCH = 2
"""What a DataLoader prefetches per worker by default."""


@dataclass(eq=False)
class LoaderSource:
    """A DataLoader of the script, without a reference to it."""

    name: str  # class of the loader
    dataset: str  # class of its dataset, and of the one in it
    num_samples: int | None  # of the dataset; None if it has no length
    batch_size: int | None  # None if the loader does not know it
    workers: int
    prefetched: int  # batches that its workers may have ready
    pin_memory: bool  # whether its batches are in pinned memory
    respawns_workers: bool  # every epoch
    in_order: bool
    inner: LoaderSource | None = None  # of the DataLoader that this one takes its batches from, as Accelerate's does
    paired_steps: int = 0  # steps of the training loader that had one batch of this one
    received: int = 0  # batches that the script has got

    @classmethod
    def of(cls, loader: Any) -> LoaderSource:
        """The source of the batches of ``loader``, a torch.utils.data.DataLoader."""
        workers = int(getattr(loader, "num_workers", 0) or 0)
        dataset = getattr(loader, "dataset", None)
        return cls(
            name=type(loader).__name__,
            dataset=dataset_name(dataset),
            num_samples=_length(dataset),
            batch_size=_batch_size(loader),
            workers=workers,
            prefetched=workers * int(getattr(loader, "prefetch_factor", 0) or 0),
            pin_memory=bool(getattr(loader, "pin_memory", False)),
            in_order=bool(getattr(loader, "in_order", True)),
            respawns_workers=workers > 0 and not getattr(loader, "persistent_workers", False),
        )

    def gives_same_batches(self, other: LoaderSource) -> bool:
        """Whether batches of ``other`` look like those of this loader."""
        return (self.name, self.dataset, self.batch_size) == (other.name, other.dataset, other.batch_size)

    def receive(self, batch: Any) -> None:
        """Count ``batch``. The first one shows whether the script itself pins memory, as a dataset or a collate function can."""
        self.received += 1
        if self.received == 1:
            self.pin_memory = self.pin_memory or _is_pinned(batch)

    def num_samples_in(self, batch: Any) -> int:
        """Samples in ``batch``: the loader's batch size, else the leading dimension of its first tensor; 1 if neither is known."""
        return num_samples(batch) if self.batch_size is None else self.batch_size


MAX_NESTED_DATASETS = 3


def dataset_name(dataset: Any) -> str:
    """The class of ``dataset`` and, as of a Subset, that of the dataset that it takes its samples from: ``Subset of CIFAR10``."""
    names = [type(dataset).__name__]
    while len(names) < MAX_NESTED_DATASETS:
        try:
            dataset = dataset.dataset
        except Exception:  # it has none, and a property of the user may raise anything
            break
        if not isinstance(dataset, Dataset):
            break
        names.append(type(dataset).__name__)
    return " of ".join(names)


def num_samples(batch: Any) -> int:
    """The leading dimension of the first tensor in ``batch``; 1 if it has none."""
    sizes = (tensor.shape[0] for tensor in _tensors(batch) if tensor.ndim)
    return next(sizes, 1)


def _is_pinned(batch: Any) -> bool:
    """Whether the first tensor in ``batch`` is in pinned memory."""
    first = next(_tensors(batch), None)
    return first is not None and torch.cuda.is_initialized() and first.is_pinned()


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def _batch_size(loader: Any) -> int | None:
    for owner in (getattr(loader, "batch_sampler", None), loader):
        size = getattr(owner, "batch_size", None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # an IterableDataset has none, and a user's __len__ may raise anything
        return None
