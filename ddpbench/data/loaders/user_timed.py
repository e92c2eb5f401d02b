"""Somebody's own DataLoader, made once more from what it tells of itself, over samples that are timed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from ddpbench.data.loader import HostBatch
from ddpbench.data.stopwatch import Stopwatch


def timed(batches: DataLoader[Any]) -> DataLoader[Any]:
    """The same batches with a sheet each. One of another class, or of samples that have no numbers, is given back as it is."""
    if type(batches) is not DataLoader or batches.batch_sampler is None or isinstance(batches.dataset, IterableDataset):
        return batches
    watch = Stopwatch()
    return DataLoader(
        TimedSamples(batches.dataset, watch),
        batch_sampler=batches.batch_sampler,
        num_workers=batches.num_workers,
        collate_fn=TimedCollate(batches.collate_fn, watch),
        pin_memory=batches.pin_memory,
        timeout=batches.timeout,
        worker_init_fn=batches.worker_init_fn,
        multiprocessing_context=batches.multiprocessing_context,
        generator=batches.generator,
        prefetch_factor=batches.prefetch_factor,
        persistent_workers=batches.persistent_workers,
        in_order=batches.in_order,
    )


class TimedSamples(Dataset[Any]):
    """The samples of ``dataset``. Of torchvision's folders, and subsets of them, decoding and augmentation are told apart."""

    def __init__(self, dataset: Any, watch: Stopwatch) -> None:
        self._apart = tells_apart(dataset)
        self._dataset = with_laps(dataset, watch) if self._apart else dataset
        self._watch = watch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        """One of a dataset that tells apart: of others a DataLoader asks for all of a batch."""
        self._watch.start()
        sample = self._dataset[index]
        self._watch.lap("augment")
        return sample

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """A batch's samples: in one lap where nothing is told apart, and at once where the data set has a way to that."""
        if self._apart:
            return [self[index] for index in indices]
        at_once = getattr(self._dataset, "__getitems__", None)
        self._watch.start()
        samples: list[Any] = at_once(indices) if at_once else [self._dataset[index] for index in indices]
        self._watch.lap("sample")
        return samples

    def __getattr__(self, name: str) -> Any:
        """What a worker's own ``worker_init_fn`` looks for."""
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)


def tells_apart(dataset: Any) -> bool:
    """Whether the dataset says which function reads a file, and which transforms what was read, as torchvision's DatasetFolder does."""
    if isinstance(dataset, Subset):
        return tells_apart(dataset.dataset)
    return callable(getattr(dataset, "loader", None)) and callable(getattr(dataset, "transform", None))


def with_laps(dataset: Any, watch: Stopwatch) -> Any:
    """A copy of such a dataset over the same files, whose reading takes a lap of its own: read and decode cannot be told apart."""
    copied = copy.copy(dataset)
    if isinstance(dataset, Subset):
        copied.dataset = with_laps(dataset.dataset, watch)
    else:
        copied.loader = Lap(dataset.loader, "decode", watch)
    return copied


class Lap:
    """A function that takes a lap."""

    def __init__(self, function: Callable[..., Any], stage: str, watch: Stopwatch) -> None:
        self._function, self._stage, self._watch = function, stage, watch

    def __call__(self, *given: Any) -> Any:
        result = self._function(*given)
        self._watch.lap(self._stage)
        return result


class TimedCollate:
    """The collate function of somebody's own; a pair of tensors is given its sheet."""

    def __init__(self, collate: Callable[[Any], Any], watch: Stopwatch) -> None:
        self._collate, self._watch = collate, watch

    def __call__(self, samples: Any) -> Any:
        self._watch.start()
        batch = self._collate(samples)
        self._watch.lap("collate")
        sheet = self._watch.sheet()
        match batch:
            case [Tensor() as images, Tensor() as labels]:
                return HostBatch(images, labels, sheet)
        return batch
