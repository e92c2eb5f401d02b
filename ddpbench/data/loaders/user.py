"""``--loader module:name``: the batches of a user-defined function or DataLoader."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ddpbench.data.loader import DeviceTransform, HostBatch
from ddpbench.data.loaders.start_workers import (
    OUT_OF_MEMORY_HINT,
    dead_worker,
    no_torch_sigchld_handler,
    stalled_worker,
    suppress_worker_count_warning,
)
from ddpbench.data.loaders.user_timed import with_timing
from ddpbench.data.normalize import to_memory_format
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.loaders import accepted_kwargs
from ddpbench.record.names import import_object
from ddpbench.record.record import DatasetInfo

TERMINATE_TIMEOUT_S = 2.0
"""Worker processes that have not terminated after this time are killed."""


def open_user_loader(config: ResolvedConfig, shard: Shard) -> UserLoader:
    """Open the user-defined loader that ``config.loader`` names.

    Its function receives the arguments that its parameters name, and does the sharding itself.
    """
    function = import_object(config.loader)
    kwargs = {"config": config, **vars(shard)}
    create = partial(function, **{name: kwargs[name] for name in accepted_kwargs(function) if name in kwargs})
    batch_spec = BatchSpec(shard.sample_shape(config.image_size), shard.classes, targets=shard.dataset == "gemm")
    return UserLoader(config.loader, create, config.batch_size, batch_spec, lambda samples: to_memory_format(samples, config.channels_last))


class UserLoader:
    """Batches of the iterable that ``create`` returns.

    It restarts when it ends. Only the last batch may be smaller than the others.
    """

    def __init__(
        self, name: str, create: Callable[[], Iterable[Any]], batch_size: int, batch_spec: BatchSpec, device_transform: DeviceTransform
    ) -> None:
        self.device_transform = device_transform
        self._name, self._create, self._batch_size, self._batch_spec = name, create, batch_size, batch_spec
        self._other_children = multiprocessing.active_children()
        start_s = perf_counter()
        self._source = self._create_source()
        setup_s = perf_counter() - start_s
        workers = getattr(self._source, "num_workers", 0)
        self.max_prefetched = workers * (getattr(self._source, "prefetch_factor", None) or 0)
        self.data = DatasetInfo(
            loader=name,
            num_samples=_num_samples(self._source),
            workers=workers,
            respawns_workers=workers > 0 and _respawns_workers(self._source),
            setup_s=setup_s,
        )
        self._iterator: Iterator[Any] = iter(())
        self._stream = self._batches()

    def next_batch(self) -> HostBatch:
        return next(self._stream)

    def stalled_worker(self) -> str:
        """Describe the DataLoader worker that owes the next batch; empty without workers."""
        return stalled_worker(self._iterator)

    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._processes() if process.pid is not None]

    def close(self) -> None:
        processes = self._processes()
        self._stream.close()
        del self._source, self._iterator  # ends its workers
        for process in processes:
            with suppress(ValueError):  # already closed
                process.terminate()
                process.join(TERMINATE_TIMEOUT_S)
                process.kill()
                process.join()

    def _processes(self) -> list[BaseProcess]:
        return [child for child in multiprocessing.active_children() if child not in self._other_children]

    def _create_source(self) -> Iterable[Any]:
        with suppress_worker_count_warning():
            source = self._create()
        if isinstance(source, DataLoader):
            return with_timing(source)
        if not isinstance(source, Iterable):
            raise BenchError(f"'{self._name}' returned {type(source).__name__}", "it must return batches of (samples, labels)")
        return source

    def _batches(self) -> Generator[HostBatch]:
        for epoch in count():
            if epoch and isinstance(self._source, Iterator):  # an iterator cannot restart
                self._source = self._create_source()
            yield from self._epoch(epoch)

    def _epoch(self, epoch: int) -> Iterator[HostBatch]:
        _set_epoch(self._source, epoch)
        with suppress_worker_count_warning(), no_torch_sigchld_handler():
            self._iterator = iter(self._source)
        num_full, other_size = 0, 0
        for each in self._raw_batches(self._processes()):
            batch = self._to_host_batch(each)
            if other_size:
                break
            if len(batch.labels) == self._batch_size:
                num_full += 1
                yield batch
            else:
                other_size = len(batch.labels)
        else:
            if num_full:
                return
        if not other_size:
            raise BenchError(f"'{self._name}' yielded no batch", "its dataset is empty, or smaller than one batch")
        raise BenchError(f"'{self._name}' yields batches of {other_size}, but the batch size is {self._batch_size}", f"use -b {other_size}")

    def _raw_batches(self, workers: Sequence[BaseProcess]) -> Iterator[Any]:
        while True:
            try:
                each = next(self._iterator)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as problem:
                if message := dead_worker(workers):
                    raise BenchError(message, OUT_OF_MEMORY_HINT) from problem
                raise
            yield each

    def _to_host_batch(self, raw: Any) -> HostBatch:
        """Convert a batch of the user's loader.

        Raises BenchError if the model cannot be trained on it.
        """
        match raw:
            case HostBatch():
                batch = raw
            case [Tensor() as samples, Tensor() as labels]:
                batch = HostBatch(samples, labels)
            case _:
                raise BenchError(f"'{self._name}' yields {_describe(raw)}", "a batch must be a pair of tensors: samples, labels")
        self._batch_spec.check(batch, self._name)
        return batch


def _set_epoch(source: Iterable[Any], epoch: int) -> None:
    """Set the epoch of the samplers, as a training script has to."""
    batch_sampler = getattr(source, "batch_sampler", None)
    for sampler in (getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if set_epoch:
            set_epoch(epoch)


def _respawns_workers(source: Iterable[Any]) -> bool:
    """Whether the workers end with each epoch.

    False for a subclass with its own ``__iter__``, which may keep them by other means.
    """
    return isinstance(source, DataLoader) and type(source).__iter__ is DataLoader.__iter__ and not source.persistent_workers


def _num_samples(source: Iterable[Any]) -> int | None:
    """Number of samples in the whole dataset; None if unknown."""
    try:
        return len(source.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return None


def _describe(raw: Any) -> str:
    """Type of a batch as text: ``tuple of Tensor, dict``."""
    if isinstance(raw, list | tuple):
        return f"{type(raw).__name__} of {', '.join(type(part).__name__ for part in raw)}"
    return type(raw).__name__


@dataclass(frozen=True)
class BatchSpec:
    """What a model accepts: samples of ``shape``, and labels of ``classes``.

    With ``targets`` (squared error) the labels are float32 (B, classes) instead.
    """

    shape: tuple[int, ...]
    classes: int
    targets: bool = False

    def check(self, batch: HostBatch, name: str) -> None:
        """Raise BenchError, naming the loader, if the batch does not fit.

        Label values are checked only on the host; checking them on a device would synchronise.
        """
        samples, labels = batch.samples, batch.labels
        if samples.shape[1:] != self.shape or samples.dtype != torch.float32:
            expected = "x".join(map(str, self.shape))
            raise BenchError(
                f"'{name}' yields samples of {'x'.join(map(str, samples.shape[1:]))} in {_dtype_name(samples.dtype)}, "
                f"but the model needs {expected} in float32",
                "convert the samples, or set --image-size",
            )
        what, shape, dtype = ("labels", samples.shape[:1], torch.int64)
        if self.targets:
            what, shape, dtype = ("targets", torch.Size([len(samples), self.classes]), torch.float32)
        if labels.shape != shape or labels.dtype != dtype:
            raise BenchError(
                f"'{name}' yields {what} of shape {tuple(labels.shape)} in {_dtype_name(labels.dtype)}, "
                f"but the model needs {tuple(shape)} in {_dtype_name(dtype)}",
                f"convert the {what}",
            )
        if not self.targets and labels.device.type == "cpu" and len(labels):
            least, greatest = (int(each) for each in labels.aminmax())
            if least < 0 or greatest >= self.classes:
                raise BenchError(
                    f"'{name}' yields labels from {least:,} to {greatest:,}, but the model needs 0 to {self.classes - 1:,}",
                    "number the classes from 0, or use another workload",
                )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
