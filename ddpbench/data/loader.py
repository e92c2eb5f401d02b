"""What every loader is, however it reads: one in host memory, whose batches are then delivered, or one on the device itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from ddpbench.data.shard import Shard
from ddpbench.record.errors import BenchError
from ddpbench.record.loader_stats import Loading
from ddpbench.record.record import Data
from ddpbench.record.resolved import Settled

Batch = tuple[Tensor, Tensor]
"""Images (B, C, S, S) or vectors (B, F), and labels, int64 (B,), or for a squared error targets, float32 (B, F).

Samples are float32; a loader that makes them on the device may give them in what the first layer computes in.
"""

Finish = Callable[[Tensor], Tensor]
"""What is still done to the samples where they are trained on: layout, and for some loaders dtype and normalisation."""


@dataclass(frozen=True)
class Sheet:
    """What one batch cost where it was made. Clocks are ``time.perf_counter``, on Linux one for all processes of a host."""

    began: float
    ended: float
    cpu_s: Mapping[str, float] = field(default_factory=dict)  # by stage of record.loading.STAGES
    wall_s: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[
        BenchError, ...
    ] = ()  # files that could not be read, in whose place others are; as a loader hands it over, new ones alone
    queued_s: float | None = None  # in which it could have worked, and no core was free; None where the kernel does not tell


@dataclass(frozen=True)
class HostBatch:
    """A batch in host memory, as its loader made it: what ``finish`` takes, and the labels of a Batch."""

    samples: Tensor
    labels: Tensor
    sheet: Sheet | None = None

    def pin_memory(self) -> HostBatch:
        """The same in page-locked memory. DataLoader's pin thread asks for it by this name."""
        return replace(self, samples=self.samples.pin_memory(), labels=self.labels.pin_memory())


class HostLoader(Protocol):
    """An endless stream of batches of this rank's shard in host memory: epoch after epoch, reshuffled, every batch full.

    Batches flow over an epoch's end, so that nothing stalls there, nothing is lost and every rank gets as many as it asks for.
    """

    data: Data
    in_flight: int  # most batches that can be ready after a pause
    finish: Finish

    def next_batch(self) -> HostBatch:
        """The next batch, valid until the next call.

        Raises BenchError, naming the file or the process, where the batch cannot be had.
        """

    def worker_pids(self) -> list[int]:
        """The loader's own processes."""

    def close(self) -> None:
        """Ends the loader and its processes."""


class Loader(Protocol):
    """The same stream on the device."""

    data: Data
    in_flight: int  # most batches that can be ready after a pause

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        """The next batch, on the device and in the memory layout asked for. Valid until the next call.

        Calls ``in_hand`` once, when the host has the batch and the compute stream is not yet made to wait for its copy.
        Raises BenchError, naming the file or the process, where the batch cannot be had.
        """

    def loading(self) -> Loading | None:
        """What the workers did for the batches handed over since the last call; None where nobody tells."""

    def worker_pids(self) -> list[int]:
        """The loader's own processes."""

    def close(self) -> None:
        """Ends the loader and its processes."""


Opener = Callable[[Settled, Shard], Loader]
"""What gives a training its batches, called as ``open_loader`` is."""


class Workerless:
    """What is the same in every loader whose samples lie on the device: nobody works ahead, and there is nothing to end."""

    in_flight = 0

    def loading(self) -> None:
        return None

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass
