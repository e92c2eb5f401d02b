"""``--loader module:name``: the batches of a user's function or DataLoader."""

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
    keep_sigchld_handler,
    stalled_worker,
    suppress_worker_count_warning,
)
from ddpbench.data.loaders.user_timed import with_timing
from ddpbench.data.normalize import to_memory_format
from ddpbench.data.registry import accepted_kwargs
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.names import import_object
from ddpbench.record.record import DatasetInfo

TERMINATE_TIMEOUT_S = 2.0
"""What does not end in this time when it is asked to hears nothing."""


def open_user_loader(config: ResolvedConfig, shard: Shard) -> UserLoader:
    """What the function that ``config.loader`` names returns. It is given what its parameters ask for; sharding is left to it."""
    function = import_object(config.loader)
    offered = {"config": config, **vars(shard)}
    make = partial(function, **{name: offered[name] for name in accepted_kwargs(function) if name in offered})
    fitting = BatchSpec(shard.sample_shape(config.image_size), shard.classes, targets=shard.dataset == "gemm")
    return UserLoader(config.loader, make, config.batch_size, fitting, lambda samples: to_memory_format(samples, config.channels_last))


class UserLoader:
    """Batches of an iterable that ``make`` returns, again from the start when it ends. A batch that is not full may only be the last."""

    def __init__(
        self, name: str, create: Callable[[], Iterable[Any]], batch_size: int, batch_spec: BatchSpec, device_transform: DeviceTransform
    ) -> None:
        self.device_transform = device_transform
        self._name, self._create, self._batch_size, self._batch_spec = name, create, batch_size, batch_spec
        self._other_children = multiprocessing.active_children()
        begin = perf_counter()
        self._source = self._create_source()
        set_up_s = perf_counter() - begin
        workers = getattr(self._source, "num_workers", 0)
        self.max_prefetched = workers * (getattr(self._source, "prefetch_factor", None) or 0)
        self.data = DatasetInfo(
            loader=name,
            description=f"batches of {name}, which shares them out itself",
            file_kind="",
            images=_num_samples(self._source),
            workers=workers,
            respawns_workers=workers > 0 and _respawns_workers(self._source),
            setup_s=set_up_s,
        )
        self._iterator: Iterator[Any] = iter(())
        self._stream = self._batches()

    def next_batch(self) -> HostBatch:
        return next(self._stream)

    def stalled_worker(self) -> str:
        """The worker of a DataLoader that has the next batch to give; nothing where there is none."""
        return stalled_worker(self._iterator)

    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._processes() if process.pid is not None]

    def close(self) -> None:
        processes = self._processes()
        self._stream.close()
        del self._source, self._iterator  # which ends its workers
        for process in processes:
            with suppress(ValueError):  # it was closed by then
                process.terminate()
                process.join(TERMINATE_TIMEOUT_S)
                process.kill()
                process.join()

    def _processes(self) -> list[BaseProcess]:
        return [child for child in multiprocessing.active_children() if child not in self._other_children]

    def _create_source(self) -> Iterable[Any]:
        with suppress_worker_count_warning():
            made = self._create()
        if isinstance(made, DataLoader):
            return with_timing(made)
        if not isinstance(made, Iterable):
            raise BenchError(f"'{self._name}' returned {type(made).__name__}", "it must return batches of (samples, labels)")
        return made

    def _batches(self) -> Generator[HostBatch]:
        for epoch in count():
            if epoch and isinstance(self._source, Iterator):  # which ends once and for all
                self._source = self._create_source()
            yield from self._epoch(epoch)

    def _epoch(self, epoch: int) -> Iterator[HostBatch]:
        _set_epoch(self._source, epoch)
        with keep_sigchld_handler():
            self._iterator = iter(self._source)
        full, not_full = 0, 0
        for each in self._raw_batches(self._processes()):
            batch = self._to_host_batch(each)
            if not_full:
                break
            if len(batch.labels) == self._batch_size:
                full += 1
                yield batch
            else:
                not_full = len(batch.labels)
        else:
            if full:
                return
        if not not_full:
            raise BenchError(f"'{self._name}' gave no batch", "is its data set empty, or smaller than a batch?")
        raise BenchError(f"'{self._name}' gives batches of {not_full}, and {self._batch_size} were asked for", f"-b {not_full}")

    def _raw_batches(self, workers: Sequence[BaseProcess]) -> Iterator[Any]:
        while True:
            try:
                each = next(self._iterator)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as problem:
                if death := dead_worker(workers):
                    raise BenchError(death, OUT_OF_MEMORY_HINT) from problem
                raise
            yield each

    def _to_host_batch(self, raw: Any) -> HostBatch:
        """The batch that was ``raw``. Raises BenchError where the model could not be trained on it."""
        match raw:
            case HostBatch():
                batch = raw
            case [Tensor() as samples, Tensor() as labels]:
                batch = HostBatch(samples, labels)
            case _:
                raise BenchError(f"'{self._name}' gives {_describe(raw)}", "a batch must be a pair of tensors: samples, labels")
        self._batch_spec.check(batch, self._name)
        return batch


def _set_epoch(source: Iterable[Any], epoch: int) -> None:
    """Tells the sampler which epoch it is, as a training script has to."""
    batch_sampler = getattr(source, "batch_sampler", None)
    for sampler in (getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if set_epoch:
            set_epoch(epoch)


def _respawns_workers(source: Iterable[Any]) -> bool:
    """Whether its workers end with an epoch. A class of its own may keep them by other means."""
    return isinstance(source, DataLoader) and type(source).__iter__ is DataLoader.__iter__ and not source.persistent_workers


def _num_samples(source: Iterable[Any]) -> int | None:
    """How many there are in the whole data set, where it tells."""
    try:
        return len(source.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return None


def _describe(raw: Any) -> str:
    """``tuple of Tensor, dict``."""
    if isinstance(raw, list | tuple):
        return f"{type(raw).__name__} of {', '.join(type(part).__name__ for part in raw)}"
    return type(raw).__name__


@dataclass(frozen=True)
class BatchSpec:
    """What a model takes: samples of a ``shape``, and labels of ``classes``, or with a squared error ``targets`` as many as these."""

    shape: tuple[int, ...]
    classes: int
    targets: bool = False

    def check(self, batch: HostBatch, name: str) -> None:
        """Raises BenchError, naming the loader. Where labels lie on the host they are looked at; a device would be waited for."""
        samples, labels = batch.samples, batch.labels
        if samples.shape[1:] != self.shape or samples.dtype != torch.float32:
            wanted = "x".join(map(str, self.shape))
            raise BenchError(
                f"'{name}' gives samples of {'x'.join(map(str, samples.shape[1:]))} in {_dtype_name(samples.dtype)}, "
                f"and the model takes {wanted} in float32",
                "convert them, or choose --image-size",
            )
        what, shape, dtype = ("labels", samples.shape[:1], torch.int64)
        if self.targets:
            what, shape, dtype = ("targets", torch.Size([len(samples), self.classes]), torch.float32)
        if labels.shape != shape or labels.dtype != dtype:
            raise BenchError(
                f"'{name}' gives {what} of shape {tuple(labels.shape)} in {_dtype_name(labels.dtype)}, "
                f"and the model takes {tuple(shape)} in {_dtype_name(dtype)}",
                "convert them",
            )
        if not self.targets and labels.device.type == "cpu" and len(labels):
            least, greatest = (int(each) for each in labels.aminmax())
            if least < 0 or greatest >= self.classes:
                raise BenchError(
                    f"'{name}' gives labels from {least:,} to {greatest:,}, and the model takes 0 to {self.classes - 1:,}",
                    "number the classes from 0, or use another workload",
                )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
