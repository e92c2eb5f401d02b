"""What every loader is, however it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ddpbench.record.record import Data

Batch = tuple[Tensor, Tensor]
"""Images (B, C, S, S) or vectors (B, F), float32, and labels, int64 (B,), or for a squared error targets, float32 (B, F)."""


class Loader(Protocol):
    """An endless stream of batches of this rank's shard: epoch after epoch, reshuffled, every batch full.

    Batches flow over an epoch's end, so that nothing stalls there, nothing is lost and every rank gets as many as it asks for.
    """

    data: Data
    in_flight: int  # most batches that can be ready after a pause

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        """The next batch, on the device and in the memory layout asked for. Valid until the next call.

        Calls ``in_hand`` once, when the host has the batch and the compute stream is not yet made to wait for its copy.
        Raises BenchError, naming the file or the process, where the batch cannot be had.
        """

    def worker_pids(self) -> list[int]:
        """The loader's own processes."""

    def close(self) -> None:
        """Ends the loader and its processes."""
