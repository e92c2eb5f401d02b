"""The iterator of a watched DataLoader: hands out the loader's batches, and reports when each was requested and received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ddpbench.script.observe.source import LoaderSource

MAX_AHEAD = 64
"""Batches by which an iterator may be ahead of the script, if it takes them from another one."""


class BatchListener(Protocol):
    """What learns of every batch."""

    def begin_batch(self, iterator: WatchedIterator) -> bool | None:
        """The script, or a loader that wraps this one, requests a batch. False or None if this request is not to be reported on."""

    def end_batch(self, iterator: WatchedIterator, batch: Any) -> None:
        """It gets ``batch``."""

    def end_iteration(self, iterator: WatchedIterator) -> None:
        """There was no batch: the iterator is exhausted, or it raised."""


class WatchedIterator:
    """Behaves as the ``iterator`` of the loader, and holds its only reference, so that its workers end when the script drops this one.

    With ``may_wrap`` it may turn out to take its batches from another DataLoader, which then is their ``source``. ``counted`` returns the
    number of samples that were counted for the last batch; None if they were not.
    """

    def __init__(
        self,
        iterator: Any,
        source: LoaderSource,
        listener: BatchListener,
        may_wrap: bool,
        counted: Callable[[], int | None],
        creation_s: float = 0.0,
    ) -> None:
        self._iterator, self._listener, self._counted = iterator, listener, counted
        self._inner_sizes: deque[int] = deque(maxlen=MAX_AHEAD)  # of batches that it has taken from another one
        self._own_source, self.may_wrap, self.creation_s = source, may_wrap, creation_s
        self.received = 0  # batches that the script has got from it
        self.is_new = True  # it has given no batch, not even to a loader that wraps it

    @property
    def source(self) -> LoaderSource:
        """Where its batches come from."""
        return self._own_source.inner or self._own_source

    def take_from(self, source: LoaderSource) -> None:
        """It has asked a DataLoader for a batch. The first one that its loader asks is the source from then on."""
        if self._own_source.inner is None:
            self._own_source.inner = source

    def take_batch_of(self, size: int) -> None:
        """It has got a batch of ``size`` samples from that DataLoader."""
        self._inner_sizes.append(size)

    def num_samples_in(self, batch: Any) -> int:
        """Samples in ``batch``, which it has just returned."""
        return self.source.num_samples_in(batch, self._inner_sizes.popleft() if self._inner_sizes else self._counted())

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._listener.begin_batch(self):
            return next(self._iterator)
        try:
            batch = next(self._iterator)
        except BaseException:
            self._listener.end_iteration(self)
            raise
        self._listener.end_batch(self, batch)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # of a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self._iterator, name)
