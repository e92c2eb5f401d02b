"""A user's DataLoader, rebuilt from its attributes with timed samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.loader import HostBatch


def with_timing(data_loader: DataLoader[Any]) -> DataLoader[Any]:
    """A DataLoader with the same batches, each with its timing.

    Returned unchanged if it is a subclass, has no batch sampler, or its dataset is iterable.
    """
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
    """The samples of ``dataset``, timed.

    Decoding and augmentation are timed separately for torchvision's folders and subsets of them.
    """

    def __init__(self, dataset: Any, watch: Stopwatch) -> None:
        self._separable = has_loader_and_transform(dataset)
        self._dataset = with_timed_loader(dataset, watch) if self._separable else dataset
        self._watch = watch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        """One sample, of a dataset whose stages are timed separately.

        For other datasets a DataLoader calls ``__getitems__``.
        """
        self._watch.start()
        sample = self._dataset[index]
        self._watch.lap("augment")
        return sample

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """The samples of a batch.

        If stages are not separable they take one lap, in one call if the dataset supports it.
        """
        if self._separable:
            return [self[index] for index in indices]
        fetch_batch = getattr(self._dataset, "__getitems__", None)
        self._watch.start()
        samples: list[Any] = fetch_batch(indices) if fetch_batch else [self._dataset[index] for index in indices]
        self._watch.lap("sample")
        return samples

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped dataset, which a user's ``worker_init_fn`` may need."""
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)


def has_loader_and_transform(dataset: Any) -> bool:
    """Whether the dataset has separate functions to read and to transform a file.

    torchvision's DatasetFolder has; for a Subset the wrapped dataset counts.
    """
    if isinstance(dataset, Subset):
        return has_loader_and_transform(dataset.dataset)
    return callable(getattr(dataset, "loader", None)) and callable(getattr(dataset, "transform", None))


def with_timed_loader(dataset: Any, watch: Stopwatch) -> Any:
    """A copy of such a dataset with a timed file loader.

    Its lap is ``decode``, because read and decode cannot be separated.
    """
    copied = copy.copy(dataset)
    if isinstance(dataset, Subset):
        copied.dataset = with_timed_loader(dataset.dataset, watch)
    else:
        copied.loader = TimedFn(dataset.loader, "decode", watch)
    return copied


class TimedFn:
    """A function that ends with a lap of ``stage``."""

    def __init__(self, function: Callable[..., Any], stage: str, watch: Stopwatch) -> None:
        self._function, self._stage, self._watch = function, stage, watch

    def __call__(self, *args: Any) -> Any:
        result = self._function(*args)
        self._watch.lap(self._stage)
        return result


class TimedCollate:
    """The user's collate function; adds the timing to a pair of tensors."""

    def __init__(self, collate: Callable[[Any], Any], watch: Stopwatch) -> None:
        self._collate, self._watch = collate, watch

    def __call__(self, samples: Any) -> Any:
        self._watch.start()
        batch = self._collate(samples)
        self._watch.lap("collate")
        timing = self._watch.finish_batch()
        match batch:
            case [Tensor() as images, Tensor() as labels]:
                return HostBatch(images, labels, timing)
        return batch
