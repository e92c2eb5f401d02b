"""A user's DataLoader with timed samples: the stages of a batch are timed where it is made, in a worker."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data._utils.pin_memory import pin_memory

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.loader import HostBatch, WorkerTiming
from ddpbench.data.loaders.indices import num_indices
from ddpbench.data.loaders.timed_transforms import timing_transforms
from ddpbench.machine.forwarding import ForwardsAttributes


def with_timing(data_loader: DataLoader[Any]) -> DataLoader[Any]:
    """A DataLoader with the same batches, each with its timing.

    Returned unchanged if it is a subclass, has no batch sampler, or its dataset is iterable.
    """
    if type(data_loader) is not DataLoader or data_loader.batch_sampler is None or isinstance(data_loader.dataset, IterableDataset):
        return data_loader
    dataset, collate = timed_parts(data_loader, _as_host_batch)
    return DataLoader(
        dataset,
        batch_sampler=data_loader.batch_sampler,
        num_workers=data_loader.num_workers,
        collate_fn=collate,
        pin_memory=data_loader.pin_memory,
        timeout=data_loader.timeout,
        worker_init_fn=data_loader.worker_init_fn,
        multiprocessing_context=data_loader.multiprocessing_context,
        generator=data_loader.generator,
        prefetch_factor=data_loader.prefetch_factor,
        persistent_workers=data_loader.persistent_workers,
        in_order=data_loader.in_order,
    )


@dataclass(frozen=True)
class TimedBatch:
    """A batch of any structure, with its timing."""

    batch: Any
    worker_timing: WorkerTiming

    def pin_memory(self) -> TimedBatch:
        """A copy in page-locked memory. DataLoader's pin thread calls this method by name."""
        return replace(self, batch=pin_memory(self.batch))


def timed_parts(data_loader: DataLoader[Any], with_worker_timing: Callable[[Any, WorkerTiming], Any] = TimedBatch) -> tuple[Any, Any]:
    """The dataset and the collate function of ``data_loader``, timed.

    The batches are what ``with_worker_timing`` makes of a batch and its timing.
    """
    watch, dataset = Stopwatch(), data_loader.dataset
    timed = TimedIterable(dataset, watch) if isinstance(dataset, IterableDataset) else TimedDataset(dataset, watch)
    makes_lists = isinstance(dataset, IterableDataset) and data_loader.batch_size is not None
    return timed, TimedCollate(data_loader.collate_fn, watch, with_worker_timing, makes_lists)


def _as_host_batch(batch: Any, timing: WorkerTiming) -> Any:
    """A pair of tensors with its timing; another batch as it is."""
    match batch:
        case [Tensor() as images, Tensor() as labels]:
            return HostBatch(images, labels, timing)
    return batch


class TimedDataset(ForwardsAttributes, Dataset[Any]):
    """The samples of ``dataset``, timed.

    Decoding and augmentation are timed separately for torchvision's folders and subsets of them.
    """

    def __init__(self, dataset: Any, watch: Stopwatch) -> None:
        separable = has_loader_and_transform(dataset)
        timed = with_timed_loader(dataset, watch) if separable else dataset
        self.__dict__.update(_separable=separable, _dataset=timed, _watch=watch)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        """One sample. For batches of a dataset whose stages are not separable, a DataLoader calls ``__getitems__``."""
        self._watch.start()
        self._watch.samples = num_indices(index, is_batch=False)
        with timing_transforms(self._watch):
            sample = self._dataset[index]
        self._watch.lap("augment" if self._separable else "sample")
        return sample

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """The samples of a batch.

        If stages are not separable they take one lap, in one call if the dataset supports it.
        """
        if self._separable:
            samples = [self[index] for index in indices]
        else:
            fetch_batch = getattr(self._dataset, "__getitems__", None)
            self._watch.start()
            with timing_transforms(self._watch):
                samples = fetch_batch(indices) if fetch_batch else [self._dataset[index] for index in indices]
            self._watch.lap("sample")
        self._watch.samples = num_indices(indices, is_batch=True)
        return samples


class TimedIterable(ForwardsAttributes, IterableDataset[Any]):
    """The samples of an iterable dataset, timed. A ``worker_init_fn`` may set its attributes, to give the worker its shard."""

    def __init__(self, dataset: Any, watch: Stopwatch) -> None:
        self.__dict__.update(_dataset=dataset, _watch=watch)

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self._dataset)
        while True:
            self._watch.start()
            try:
                with timing_transforms(self._watch):
                    sample = next(samples)
            except StopIteration:
                return
            self._watch.lap("sample")
            yield sample


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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._function(*args, **kwargs)
        self._watch.lap(self._stage)
        return result


class TimedCollate:
    """The user's collate function; adds the timing to its batch.

    ``counts_samples`` says that it gets a list of samples whose indices were not counted, since an iterable dataset has none.
    """

    def __init__(
        self,
        collate: Callable[[Any], Any],
        watch: Stopwatch,
        with_worker_timing: Callable[[Any, WorkerTiming], Any],
        counts_samples: bool = False,
    ) -> None:
        self._collate, self._watch, self._with_worker_timing = collate, watch, with_worker_timing
        self._counts_samples = counts_samples

    def __call__(self, samples: Any) -> Any:
        self._watch.start()
        if self._counts_samples:
            self._watch.samples = len(samples)
        batch = self._collate(samples)
        self._watch.lap("collate")
        return self._with_worker_timing(batch, self._watch.finish_batch())
