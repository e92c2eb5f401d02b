"""Somebody's own DataLoader, made once more from what it tells of itself, over samples that are timed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.loader import HostBatch


def with_timing(data_loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same batches with a sheet each. One of another class, or of samples that have no numbers, is given back as it is."""
    if type(data_loader) is not DataLoader or data_loader.batch_sampler is None or isinstance(data_loader.dataset, IterableDataset):
        return data_loader
    watch = Stopwatch()
    return DataLoader(
        TimedDataset(data_loader.dataset, watch),
        batch_sampler=data_loader.batch_sampler,
        num_workers=data_loader.num_workers,
        collate_fn=TimedCollate(data_loader.collate_fn, watch),
        pin_memory=data_loader.pin_memory,
        timeout=data_loader.timeout,
        worker_init_fn=data_loader.worker_init_fn,
        multiprocessing_context=data_loader.multiprocessing_context,
        generator=data_loader.generator,
        prefetch_factor=data_loader.prefetch_factor,
        persistent_workers=data_loader.persistent_workers,
        in_order=data_loader.in_order,
    )


class TimedDataset(Dataset[Any]):
    """The samples of ``dataset``. Of torchvision's folders, and subsets of them, decoding and augmentation are told apart."""

    def __init__(self, dataset: Any, watch: Stopwatch) -> None:
        self._separable = has_loader_and_transform(dataset)
        self._dataset = with_timed_loader(dataset, watch) if self._separable else dataset
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
        if self._separable:
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


def has_loader_and_transform(dataset: Any) -> bool:
    """Whether the dataset says which function reads a file, and which transforms what was read, as torchvision's DatasetFolder does."""
    if isinstance(dataset, Subset):
        return has_loader_and_transform(dataset.dataset)
    return callable(getattr(dataset, "loader", None)) and callable(getattr(dataset, "transform", None))


def with_timed_loader(dataset: Any, watch: Stopwatch) -> Any:
    """A copy of such a dataset over the same files, whose reading takes a lap of its own: read and decode cannot be told apart."""
    copied = copy.copy(dataset)
    if isinstance(dataset, Subset):
        copied.dataset = with_timed_loader(dataset.dataset, watch)
    else:
        copied.loader = TimedFn(dataset.loader, "decode", watch)
    return copied


class TimedFn:
    """A function that takes a lap."""

    def __init__(self, function: Callable[..., Any], stage: str, watch: Stopwatch) -> None:
        self._function, self._stage, self._watch = function, stage, watch

    def __call__(self, *args: Any) -> Any:
        result = self._function(*args)
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
        sheet = self._watch.finish_batch()
        match batch:
            case [Tensor() as images, Tensor() as labels]:
                return HostBatch(images, labels, sheet)
        return batch
