"""Where a batch comes from: a DataLoader of the script, and the number of samples in its batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset

DEFAULT_PREFETCH = 2
"""What a DataLoader prefetches per worker by default."""


@dataclass(eq=False)
class LoaderSource:
    """A DataLoader of the script, without a reference to it."""

    name: str  # class of the loader
    dataset: str  # class of its dataset, and of the one in it
    sampler: str  # class of what chooses samples, also inside of torch's BatchSampler; empty without one
    num_samples: int | None  # of the dataset; None if it has no length
    batch_size: int | None  # None if the loader does not know it
    workers: int
    prefetched: int  # batches that its workers may have ready
    pin_memory: bool  # whether its batches are in pinned memory
    respawns_workers: bool  # every epoch
    in_order: bool
    epoch_batches: int | None = None  # None if unknown
    is_rebuilt: bool = False  # the script creates the loader again for every epoch
    is_stream: bool = False  # its dataset is iterable
    may_end_short: bool = False  # an iterable dataset decides where, and the last batch may be smaller
    inner: LoaderSource | None = None  # of the DataLoader that this one takes its batches from, as Accelerate's does
    paired_steps: int = 0  # steps of the training loader that had one batch of this one
    received: int = 0  # batches that the script has got
    received_before: int = 0  # from the loaders whose place this one has taken
    _places: list[Place] | None = None  # where a full batch has ``batch_size``

    @classmethod
    def of(cls, loader: Any) -> LoaderSource:
        """The source of the batches of ``loader``, a torch.utils.data.DataLoader."""
        workers = int(getattr(loader, "num_workers", 0) or 0)
        dataset = getattr(loader, "dataset", None)
        return cls(
            name=type(loader).__name__,
            dataset=dataset_name(dataset),
            sampler=_sampler_name(loader),
            num_samples=_length(dataset),
            batch_size=_batch_size(loader),
            workers=workers,
            prefetched=workers * int(getattr(loader, "prefetch_factor", 0) or 0),
            pin_memory=bool(getattr(loader, "pin_memory", False)),
            in_order=bool(getattr(loader, "in_order", True)),
            may_end_short=isinstance(dataset, IterableDataset) and not getattr(loader, "drop_last", False),
            respawns_workers=workers > 0 and not getattr(loader, "persistent_workers", False),
            epoch_batches=_length(loader),
            is_stream=isinstance(dataset, IterableDataset),
        )

    @property
    def total_received(self) -> int:
        """Batches that the script has got, also from the loaders before."""
        return self.received_before + self.received

    def gives_same_batches(self, other: LoaderSource) -> bool:
        """Whether batches of ``other`` look like those of this loader."""
        return (self.name, self.dataset, self.batch_size) == (other.name, other.dataset, other.batch_size)

    def receive(self, batch: Any) -> None:
        """Count ``batch``. The first one shows whether the script itself pins memory, as a dataset or a collate function can."""
        self.received += 1
        if self.received == 1:
            self.pin_memory = self.pin_memory or _is_pinned(batch)

    def num_samples_in(self, batch: Any, counted: int | None) -> int:
        """Samples in ``batch``: as many as were ``counted`` where it was drawn or made, if they were.

        Otherwise the loader's batch size, else the leading dimension of its first tensor; 1 if neither is known.
        """
        if counted is not None:
            return counted
        if self.batch_size is None:
            return num_samples(batch)
        return self._size_if_short(batch, self.batch_size) if self.may_end_short else self.batch_size

    def _size_if_short(self, batch: Any, full: int) -> int:
        """The number that ``batch`` has wherever the first batch had ``full``, if it is smaller; else ``full``."""
        if self._places is None:
            self._places = list(islice(_places_of(batch, full), MAX_PLACES))
        sizes = {_size_at(batch, place) for place in self._places}
        (size,) = sizes if len(sizes) == 1 else (None,)
        return size if size is not None and size < full else full


def _sampler_name(loader: Any) -> str:
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(loader, "sampler", None) if batch_sampler is None else batch_sampler
    sampler = sampler.sampler if type(sampler) is BatchSampler else sampler
    return "" if sampler is None else type(sampler).__name__


MAX_PLACES = 4

Place = tuple[tuple[Any, ...], int | None]
"""Keys that lead to a part of a batch, and the dimension of that tensor; None for the length of a list."""


def _places_of(batch: Any, size: int, keys: tuple[Any, ...] = ()) -> Iterator[Place]:
    """Where ``batch`` has lists of length ``size``, or tensors with that dimension."""
    if isinstance(batch, torch.Tensor):
        shape = () if batch.is_nested else batch.shape
        yield from ((keys, dimension) for dimension, length in enumerate(shape) if length == size)
    elif isinstance(batch, (list, tuple)) and keys and len(batch) == size:
        yield keys, None
    elif isinstance(batch, (list, tuple, Mapping)):
        for key, part in batch.items() if isinstance(batch, Mapping) else enumerate(batch):
            yield from _places_of(part, size, (*keys, key))


def _size_at(batch: Any, place: Place) -> int | None:
    """The size there; None if ``batch`` has no such part."""
    keys, dimension = place
    try:
        for key in keys:
            batch = batch[key]
        return len(batch) if dimension is None else int(batch.shape[dimension])
    except Exception:  # the user's batches may be anything
        return None


MAX_DEPTH, MAX_PARTS = 4, 2000
"""Levels of a batch, and parts of it, in which ``num_elements`` looks for tensors: as many as a batch of torch_geometric has."""

SCALARS = (int, float, str, bytes, bool, type(None))
"""Types of parts that hold nothing: lists may have many."""


def num_elements(batch: Any) -> int:
    """Elements of the tensors in ``batch``, and in what it holds, objects of any class among them: how much there is to compute.

    Called at every step of a training with several ranks: it costs some microseconds.
    """
    found, parts = 0, [(batch, MAX_DEPTH)]
    for number, (part, depth) in enumerate(parts):
        if isinstance(part, torch.Tensor):
            found += part.numel()
        elif depth and number < MAX_PARTS:
            parts += [(each, depth - 1) for each in _held_by(part) if type(each) not in SCALARS]
    return found


def _held_by(part: Any) -> Iterable[Any]:
    if isinstance(part, list | tuple):
        return part[:MAX_PARTS]
    if isinstance(part, Mapping):
        return part.values()
    if isinstance(part, Dataset | torch.nn.Module | type):  # of the script, not of one batch
        return ()
    return getattr(part, "__dict__", {}).values()


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
    sizes = (int(tensor.size(0)) for tensor in tensors_in(batch) if tensor.ndim)
    return next(sizes, 1)


def _is_pinned(batch: Any) -> bool:
    """Whether the first tensor in ``batch`` is in pinned memory."""
    first = next(tensors_in(batch), None)
    return first is not None and torch.cuda.is_initialized() and first.is_pinned()


def tensors_in(batch: Any, max_depth: int = 8) -> Iterator[torch.Tensor]:
    """The tensors in a nested batch, also those that are attributes of its objects."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif max_depth:
        if isinstance(batch, (list, tuple, Mapping)):
            parts: Any = batch.values() if isinstance(batch, Mapping) else batch
        else:
            parts = getattr(batch, "__dict__", {}).values()
        for part in parts:
            yield from tensors_in(part, max_depth - 1)


def _batch_size(loader: Any) -> int | None:
    for owner in (getattr(loader, "batch_sampler", None), loader):
        size = getattr(owner, "batch_size", None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # an IterableDataset has none, and a user's __len__ may raise anything
        return None
