"""Samples per batch: as many as the sampler of a DataLoader drew indices for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddpbench.data.loaders.indices import num_indices

MAX_AHEAD = 4096
"""Batches that a loader may have drawn ahead of the script; sizes of more are forgotten."""


class DrawnSizes:
    """Sizes of the batches that each iterator of a DataLoader has drawn last.

    They are noted in the process that draws. The sampler and the batches do not change.
    """

    def __init__(self) -> None:
        self._sizes: WeakKeyDictionary[Any, deque[int | None]] = WeakKeyDictionary()

    def noted(self, next_index: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``_BaseDataLoaderIter._next_index``, which notes the sizes of what it returns."""

        @wraps(next_index)
        def noted_next_index(iterator: Any) -> Any:
            indices = next_index(iterator)
            with suppress(Exception):  # of a class that cannot be a key
                sizes = self._sizes.get(iterator)
                if sizes is None:
                    sizes = self._sizes[iterator] = deque(maxlen=MAX_AHEAD)
                sizes.append(num_indices(indices, iterator._auto_collation))
            return indices

        return noted_next_index

    def of_last_batch(self, iterator: Any) -> int | None:
        """Indices of the batch that ``iterator`` has just returned; None if unknown.

        What it has drawn since then is still with its workers. If their batches may overtake each other, it is the size of the oldest.
        """
        sizes = self._sizes.get(iterator) if isinstance(iterator, _BaseDataLoaderIter) else None
        ahead = len(getattr(iterator, "_task_info", ()))
        return sizes[-1 - ahead] if sizes and len(sizes) > ahead else None
