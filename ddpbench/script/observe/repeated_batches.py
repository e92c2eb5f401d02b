"""Notices workers that yield each other's batches, from the batches that a script gets anyway.

Workers of a stream, an IterableDataset, take turns. If it is not divided among them, the first batches of all are the same. Only the
first two turns are looked at, and nothing more once two batches differ. Streams with random transforms are not seen.
"""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_leaves

from ddpbench.record.script import SampleComparison
from ddpbench.script.observe.sample_digest import NotComparable, digest
from ddpbench.script.observe.source import LoaderSource

TURNS = 2


class RepeatedWorkers:
    """The first batches of the first loader with workers that a script iterates over."""

    def __init__(self) -> None:
        self.comparison: SampleComparison | None = None
        """What was found; None unless workers repeat each other."""

        self._source: LoaderSource | None = None
        self._digests: list[bytes] = []
        self._goes_on = True

    def receive(self, source: LoaderSource, batch: Any, num_samples: int) -> None:
        """Look at a batch of ``source``."""
        if not self._goes_on or source.workers < 2 or source is not (self._source or source):
            return
        self._source = source
        if not source.is_stream or not source.in_order or _is_on_device(batch):
            self._goes_on = False
            return
        try:
            self._digests.append(digest(batch))
        except NotComparable:
            self._goes_on = False
            return
        turn, worker = divmod(len(self._digests) - 1, source.workers)
        if worker and self._digests[-1] != self._digests[-2]:
            self._goes_on = False
        elif (turn, worker) == (TURNS - 1, source.workers - 1):
            self._goes_on = False
            if len(set(self._digests)) == TURNS:  # else all batches are the same
                samples = num_samples * len(self._digests)
                repeated = samples // source.workers * (source.workers - 1)
                self.comparison = SampleComparison(workers=source.workers, samples=samples, different=repeated, is_stream=True)


def _is_on_device(batch: Any) -> bool:
    return any(getattr(leaf, "is_cuda", False) for leaf in tree_leaves(batch))
