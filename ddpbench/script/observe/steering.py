"""What a diagnosis does with the loaders of a script that only watching does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ddpbench.script.observe.source import LoaderSource


class SteeredBatches(Protocol):
    """An iterator that gives a script other batches than its own."""

    samples: int | None  # in the last batch; None if unknown

    def __next__(self) -> Any: ...


class Steering(Protocol):
    """What gives a script other batches than its own."""

    def timed(self, get_iterator: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``DataLoader._get_iterator``, or that of a subclass, with batches that are timed where they are made."""

    def begin_epoch(self, loader: Any, source: LoaderSource | None) -> bool:
        """The script is about to create an iterator of ``loader``. Returns whether that can wait, since it gets other batches now.

        ``source`` is None if it is the first one.
        """

    def steer(self, loader: Any, iterator: Any, source: LoaderSource, restart: Callable[[], Any]) -> SteeredBatches:
        """The iterator that the script gets in place of ``iterator``, an epoch of ``loader``; ``restart`` begins another.

        ``iterator`` is None if ``begin_epoch`` has said that it can wait.
        """

    def give_up(self, problem: str) -> None:
        """The script is not observed any more, because of ``problem``."""

    def after_update(self, updates: int) -> None:
        """An optimizer has made its step, the ``updates``-th of all optimizers."""
