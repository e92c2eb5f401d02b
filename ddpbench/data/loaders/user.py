"""``--loader module:name``: batches of somebody's own, made by a function, a DataLoader's or any others."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from ddpbench.data.loader import Finish, HostBatch
from ddpbench.data.loaders.batch_spec import Fitting
from ddpbench.data.loaders.stalled_worker import SHORT_OF_MEMORY, death_among, owed_by
from ddpbench.data.loaders.start_workers import starting_workers, without_advice
from ddpbench.data.loaders.user_timed import timed
from ddpbench.data.normalize import in_layout
from ddpbench.data.registry import asked_for
from ddpbench.data.shard import Shard
from ddpbench.record.errors import BenchError
from ddpbench.record.names import resolve
from ddpbench.record.record import Data
from ddpbench.record.resolved import Settled

DEAF_S = 2.0
"""What does not end in this time when it is asked to hears nothing."""


def open_own(config: Settled, shard: Shard) -> Own:
    """What the function that ``config.loader`` names returns. It is given what its parameters ask for; sharding is left to it."""
    function = resolve(config.loader)
    offered = {"config": config, **vars(shard)}
    make = partial(function, **{name: offered[name] for name in asked_for(function) if name in offered})
    fitting = Fitting(shard.sample_shape(config.image_size), shard.classes, targets=shard.dataset == "gemm")
    return Own(config.loader, make, config.batch_size, fitting, lambda samples: in_layout(samples, config.channels_last))


class Own:
    """Batches of an iterable that ``make`` returns, again from the start when it ends. A batch that is not full may only be the last."""

    def __init__(self, name: str, make: Callable[[], Iterable[Any]], batch_size: int, fitting: Fitting, finish: Finish) -> None:
        self.finish = finish
        self._name, self._make, self._batch_size, self._fitting = name, make, batch_size, fitting
        self._earlier = multiprocessing.active_children()
        begin = perf_counter()
        self._source = self._made()
        set_up_s = perf_counter() - begin
        workers = getattr(self._source, "num_workers", 0)
        self.in_flight = workers * (getattr(self._source, "prefetch_factor", None) or 0)
        self.data = Data(
            loader=name,
            description=f"batches of {name}, which shares them out itself",
            files="",
            images=_samples(self._source),
            workers=workers,
            starts_anew=workers > 0 and _starts_anew(self._source),
            set_up_s=set_up_s,
        )
        self._given: Iterator[Any] = iter(())
        self._stream = self._batches()

    def next_batch(self) -> HostBatch:
        return next(self._stream)

    def owed_by(self) -> str:
        """The worker of a DataLoader that has the next batch to give; nothing where there is none."""
        return owed_by(self._given)

    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._processes() if process.pid is not None]

    def close(self) -> None:
        processes = self._processes()
        self._stream.close()
        del self._source, self._given  # which ends its workers
        for process in processes:
            with suppress(ValueError):  # it was closed by then
                process.terminate()
                process.join(DEAF_S)
                process.kill()
                process.join()

    def _processes(self) -> list[BaseProcess]:
        return [child for child in multiprocessing.active_children() if child not in self._earlier]

    def _made(self) -> Iterable[Any]:
        with without_advice():
            made = self._make()
        if isinstance(made, DataLoader):
            return timed(made)
        if not isinstance(made, Iterable):
            raise BenchError(f"'{self._name}' returned {type(made).__name__}", "it must return batches of (samples, labels)")
        return made

    def _batches(self) -> Generator[HostBatch]:
        for epoch in count():
            if epoch and isinstance(self._source, Iterator):  # which ends once and for all
                self._source = self._made()
            yield from self._epoch(epoch)

    def _epoch(self, epoch: int) -> Iterator[HostBatch]:
        _shuffle_anew(self._source, epoch)
        with starting_workers():
            self._given = iter(self._source)
        full, not_full = 0, 0
        for each in self._as_given(self._processes()):
            batch = self._understood(each)
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

    def _as_given(self, workers: Sequence[BaseProcess]) -> Iterator[Any]:
        while True:
            try:
                each = next(self._given)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as problem:
                if death := death_among(workers):
                    raise BenchError(death, SHORT_OF_MEMORY) from problem
                raise
            yield each

    def _understood(self, given: Any) -> HostBatch:
        """The batch that was ``given``. Raises BenchError where the model could not be trained on it."""
        match given:
            case HostBatch():
                batch = given
            case [Tensor() as samples, Tensor() as labels]:
                batch = HostBatch(samples, labels)
            case _:
                raise BenchError(f"'{self._name}' gives {_described(given)}", "a batch must be a pair of tensors: samples, labels")
        self._fitting.check(batch, self._name)
        return batch


def _shuffle_anew(source: Iterable[Any], epoch: int) -> None:
    """Tells the sampler which epoch it is, as a training script has to."""
    batch_sampler = getattr(source, "batch_sampler", None)
    for sampler in (getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if set_epoch:
            set_epoch(epoch)


def _starts_anew(source: Iterable[Any]) -> bool:
    """Whether its workers end with an epoch. A class of its own may keep them by other means."""
    return isinstance(source, DataLoader) and type(source).__iter__ is DataLoader.__iter__ and not source.persistent_workers


def _samples(source: Iterable[Any]) -> int | None:
    """How many there are in the whole data set, where it tells."""
    try:
        return len(source.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return None


def _described(given: Any) -> str:
    """``tuple of Tensor, dict``."""
    if isinstance(given, list | tuple):
        return f"{type(given).__name__} of {', '.join(type(part).__name__ for part in given)}"
    return type(given).__name__
