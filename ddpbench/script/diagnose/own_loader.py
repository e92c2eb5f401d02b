"""The script's own DataLoader, as its loop gets it: timed in its workers, refilled when a stage has drained it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter
from typing import Any, Protocol
from weakref import ref

import torch
from torch.utils.data import DataLoader

from ddpbench.data.batch_timing import BatchTimings
from ddpbench.data.loaders.start_workers import StartBarrier, is_forked, kill_workers
from ddpbench.data.loaders.user_timed import TimedBatch, timed_parts
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.prediction import Scenario
from ddpbench.script.diagnose.repeated import RepeatedBatches
from ddpbench.script.observe.source import LoaderSource, num_samples

START_TIMEOUT_S = 20.0
"""Seconds in which a forked worker starts, on the busiest machine."""

_creation = threading.RLock()
"""Held while an iterator is created from changed attributes of its loader: a thread may drain the loader, and begin its next epoch.

A worker that is forked meanwhile may create iterators of its own: the lock is reentrant, and the worker's thread is the one that holds it.
"""


def timed_get_iterator(get_iterator: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``DataLoader._get_iterator`` with batches that are timed where they are made.

    The loader itself keeps its dataset and collate function: the iterator reads them while it is created.
    """

    @wraps(get_iterator)
    def get_timed_iterator(loader: DataLoader[Any]) -> Any:
        begin_s = perf_counter()
        with _creation:
            attributes = vars(loader)
            before = {name: attributes[name] for name in ("dataset", "collate_fn")}
            attributes["dataset"], attributes["collate_fn"] = timed_parts(loader)
            try:
                iterator = _create_iterator(get_iterator, loader)
                return TimedIterator(iterator, perf_counter() - begin_s)
            finally:
                attributes.update(before)

    return get_timed_iterator


def _create_iterator(get_iterator: Callable[[Any], Any], loader: DataLoader[Any]) -> Any:
    """An iterator whose forked workers have started, or have been forked once more: rarely one hangs, and the script with it."""
    if not loader.num_workers or not is_forked(loader):
        return get_iterator(loader)
    user_init, generator = loader.worker_init_fn, loader.generator or torch.default_generator
    state = generator.get_state()  # decides the order of samples, and the seeds of workers
    try:
        loader.worker_init_fn = barrier = StartBarrier(user_init)
        iterator = get_iterator(loader)
        workers = getattr(iterator, "_workers", ())  # none of an iterator of another class
        if not barrier.wait_for_all(workers, START_TIMEOUT_S):
            kill_workers(iterator, workers)
            generator.set_state(state)
            iterator = get_iterator(loader)
        return iterator
    finally:
        loader.worker_init_fn = user_init


class TimedIndices:
    """The indices that a DataLoader draws, and how long it takes for them."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices, self._seconds = indices, 0.0

    def __iter__(self) -> TimedIndices:
        return self

    def __next__(self) -> Any:
        begin_s = perf_counter()
        try:
            return next(self._indices)
        finally:
            self._seconds += perf_counter() - begin_s

    def pop_seconds(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


MIN_TIMED_BATCHES_PER_WORKER = 2
"""In shorter epochs, the first batch of each worker is timed like the others: there are too few of those."""


class TimedIterator:
    """An iterator of a DataLoader, which took ``creation_s``: returns its batches, and keeps their timings.

    The first batch of a new worker is not typical: the worker opens files, or reads an index.
    """

    def __init__(self, iterator: Any, creation_s: float) -> None:
        self._iterator, self._creation_s = iterator, creation_s
        self.timings = BatchTimings()
        self._length, self._received = _length(iterator), 0
        self.first_batch_s: float | None = None  # that the script waited for its workers to start and load one
        self.samples: int | None = None  # in the last batch; None if unknown
        self._time_indices()

    def _time_indices(self) -> None:
        """Torch has no public way."""
        indices = getattr(self._iterator, "_sampler_iter", None)
        self._indices = None if indices is None else TimedIndices(indices)
        if self._indices is not None:
            self._iterator._sampler_iter = self._indices

    def _reset(self, *arguments: Any) -> None:
        """A DataLoader that keeps its workers begins another epoch."""
        self._iterator._reset(*arguments)
        self._time_indices()

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        requested_s = perf_counter()
        found = next(self._iterator)
        drawn_s = self._indices.pop_seconds() if self._indices is not None else None
        if self.first_batch_s is not None and drawn_s is not None:  # what is drawn for the first batch is no wait of a step
            self.timings.add_sampler_time(drawn_s)
        if self.first_batch_s is None:
            self.first_batch_s = self._creation_s + perf_counter() - requested_s
            requested_s = perf_counter()  # the start of workers is no wait of a step
        if not isinstance(found, TimedBatch):
            self.samples = None
            return found
        samples = found.worker_timing.samples
        self.samples = num_samples(found.batch) if samples is None else samples
        self._received += 1
        if self._received > self._num_first:
            self.timings.record(requested_s, self.samples, found.worker_timing)
        return found.batch

    @property
    def _num_first(self) -> int:
        """First batches of its workers that are not timed."""
        workers = len(getattr(self._iterator, "_workers", ()))
        return workers if self._length is None or self._length > MIN_TIMED_BATCHES_PER_WORKER * workers else 0

    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in getattr(self._iterator, "_workers", ())]

    def end_workers(self, may_hang: bool = False) -> None:
        """End its workers, at once if they ``may_hang``. It has no further batch. Torch has no public way."""
        workers = getattr(self._iterator, "_workers", ())
        if workers and may_hang:
            kill_workers(self._iterator, workers)
        elif workers:
            self._iterator._shutdown_workers()

    def pop_stats(self) -> LoaderStats | None:
        """Statistics of the batches since the last call; None if there are none."""
        return self.timings.pop_stats()

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # of a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self._iterator, name)


class BatchChooser(Protocol):
    """What decides which batch a script gets."""

    def choose(self, iterator: SteeredIterator) -> Any:
        """The next batch. Raises StopIteration to end the epoch."""


@dataclass
class SteeredLoader:
    """A loader of the script, as a diagnosis sees it."""

    num_batches: int | None = None  # of an epoch; None if unknown
    is_endless: bool = False  # torch's iterator of it has no length, since its sampler never ends: all epochs may have one iterator
    present: Callable[[], SteeredIterator | None] = lambda: None  # weak: the script decides how long its iterator and the workers live
    repeated: RepeatedBatches = field(default_factory=RepeatedBatches)
    timings: BatchTimings = field(default_factory=BatchTimings)  # of its iterators, one after another
    epoch_starts_s: list[float] = field(default_factory=list)  # from the creation of workers to their first batch; 0 if they were kept
    trials: dict[Scenario, Any] = field(default_factory=dict)  # an OpenTrial each
    worker_bytes: int = 0  # private memory of a worker, when it was last measured

    @property
    def iterator(self) -> SteeredIterator | None:
        """The iterator of the present epoch; None between two epochs."""
        return self.present()

    def drop_own(self) -> int:
        """Take and drop a batch of the script's own loader, which the script does not count; returns its number of samples."""
        assert self.iterator is not None, "the script iterates over it"
        return self.iterator.drop_own()

    def close_trials(self) -> None:
        """End the workers of all trials. They start again when their batches are wanted."""
        for trial in self.trials.values():
            trial.close()
        self.trials.clear()

    @property
    def first_batch_s(self) -> float:
        """Seconds that the script waited for the first batch of its present workers; 0 if unknown."""
        return (self._timed.first_batch_s or 0.0) if self._timed is not None else 0.0

    def worker_pids(self) -> list[int]:
        return self._timed.worker_pids() if self._timed is not None else []

    def pop_stats(self) -> LoaderStats | None:
        return self.timings.pop_stats()

    @property
    def _timed(self) -> TimedIterator | None:
        """The present iterator; None if it is one of a class that makes its own."""
        own = None if self.iterator is None else self.iterator.own
        return own if isinstance(own, TimedIterator) else None


class SteeredIterator:
    """What the script iterates over. It yields as many batches as its own loader would, whichever they are.

    ``own`` is None if no batch of the script's own loader is needed now: ``restart`` creates its iterator once one is.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        own: Any,
        source: LoaderSource,
        steered: SteeredLoader,
        restart: Callable[[], Any],
        chooser: BatchChooser,
    ) -> None:
        self.loader, self.source, self.steered = loader, source, steered
        self.own: Any = own
        self._restart, self._chooser = restart, chooser
        steered.present = ref(self)
        length = None if own is None else _length(own)
        if length is None and isinstance(own, TimedIterator) and not source.is_stream:
            steered.is_endless = True
        if length is None and steered.num_batches is None and not steered.is_endless:
            length = source.epoch_batches  # of a loader whose iterator is a generator
        if length is not None:
            steered.num_batches = length
        self.num_given = self._num_own = 0
        self._has_restarted = False  # in the middle of an epoch
        self.samples: int | None = None  # in the last batch that the script has got; None if unknown
        self._adopt_own()

    def _adopt_own(self) -> None:
        """Time the batches of the present iterator together with those of the ones before."""
        if isinstance(self.own, TimedIterator):
            self.own.timings = self.steered.timings

    def _created_own(self) -> Any:
        if self.own is None:
            self.own = self._restart()
            self._adopt_own()
        return self.own

    def _next_of_own(self) -> Any:
        own = self._created_own()
        starts = isinstance(own, TimedIterator) and own.first_batch_s is None
        batch = next(own)
        if self.source.workers and isinstance(own, TimedIterator):
            if starts and not (self._has_restarted and self.loader.persistent_workers):
                self.steered.epoch_starts_s.append(own.first_batch_s or 0.0)
            elif self._begins_epoch_with_kept_workers:
                self.steered.epoch_starts_s.append(0.0)
        return batch

    @property
    def _begins_epoch_with_kept_workers(self) -> bool:
        """Whether a batch, of workers that have not just started, is the first of an epoch."""
        if self.steered.is_endless and self.source.epoch_batches:
            return self._num_own % self.source.epoch_batches == 0
        return self._num_own == 0

    def __iter__(self) -> SteeredIterator:
        return self

    def __next__(self) -> Any:
        if self.steered.num_batches is not None and self.num_given >= self.steered.num_batches:
            if self.num_given != self._num_own or self._has_restarted:
                raise StopIteration
            batch = self.next_own()  # nothing was drained or replaced: it ends by itself, and its workers with it
        else:
            batch = self._chooser.choose(self)
        self.num_given += 1
        return batch

    def next_own(self, may_end: bool = True) -> Any:
        """The next batch of the script's own loader. Raises StopIteration at the end of its epoch, or begins another if it must not end.

        From the first stage on the ranks take different numbers of batches from the training loader. Its epochs end by the number of those
        that the script gets then; those of unknown length do not end any more.
        """
        batch, self.samples = self._take_own(may_end)
        return batch

    def drop_own(self) -> int:
        """Take and drop a batch of the script's own loader, which the script does not count; returns its number of samples."""
        return self.source.num_samples_in(*self._take_own(may_end=False))

    def end_workers(self) -> None:
        """End the workers of the script's own loader, which start again with its next batch."""
        own = getattr(self.loader, "_iterator", None) if self.own is None else self.own  # workers that are kept may wait for an epoch
        if self.source.workers and isinstance(own, TimedIterator):
            self.own, self._has_restarted = None, True
            if self.loader.persistent_workers:
                self.loader._iterator = None
            own.end_workers()

    def _take_own(self, may_end: bool) -> tuple[Any, int | None]:
        """The next batch of the script's own loader, and its number of samples, if known."""
        try:
            batch = self._next_of_own()
        except StopIteration:
            if may_end:
                self.steered.num_batches = self._num_own
                raise
            self.own = None
            batch = self._next_of_own()
        self._num_own += 1
        return batch, self.own.samples if isinstance(self.own, TimedIterator) else None

    def __len__(self) -> int:
        return len(self._created_own())

    def __getattr__(self, name: str) -> Any:
        if name in ("own", "_restart"):  # of a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self._created_own(), name)


def _length(iterator: Any) -> int | None:
    """Batches of an epoch; None of an IterableDataset, and of samplers that never end."""
    try:
        return len(iterator)
    except Exception:  # of the user's code, too
        return None
