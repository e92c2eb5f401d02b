"""What every loader is, however it reads: one in host memory, whose batches are then delivered, or one on the device itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.record import DatasetInfo

Batch = tuple[Tensor, Tensor]
"""Images (B, C, S, S) or vectors (B, F), and labels, int64 (B,), or for a squared error targets, float32 (B, F).

Samples are float32; a loader that makes them on the device may give them in what the first layer computes in.
"""

DeviceTransform = Callable[[Tensor], Tensor]
"""What is still done to the samples where they are trained on: layout, and for some loaders dtype and normalisation."""


@dataclass(frozen=True)
class WorkerTiming:
    """What one batch cost where it was made. Clocks are ``time.perf_counter``, on Linux one for all processes of a host."""

    start_s: float
    end_s: float
    cpu_s: Mapping[str, float] = field(default_factory=dict)  # by stage of record.loading.STAGES
    wall_s: Mapping[str, float] = field(default_factory=dict)
    skipped_files: tuple[
        BenchError, ...
    ] = ()  # files that could not be read, in whose place others are; as a loader hands it over, new ones alone
    runqueue_wait_s: float | None = None  # in which it could have worked, and no core was free; None where the kernel does not tell


@dataclass(frozen=True)
class HostBatch:
    """A batch in host memory, as its loader made it: what ``finish`` takes, and the labels of a Batch."""

    samples: Tensor
    labels: Tensor
    worker_timing: WorkerTiming | None = None

    def pin_memory(self) -> HostBatch:
        """The same in page-locked memory. DataLoader's pin thread asks for it by this name."""
        return replace(self, samples=self.samples.pin_memory(), labels=self.labels.pin_memory())


class BatchProducer(Protocol):
    """An endless stream of batches of this rank's shard: epoch after epoch, reshuffled, every batch full.

    Batches flow over an epoch's end, so that nothing stalls there, nothing is lost and every rank gets as many as it asks for.
    """

    data: DatasetInfo
    max_prefetched: int  # most batches that can be ready after a pause

    def worker_pids(self) -> list[int]:
        """The loader's own processes."""

    def close(self) -> None:
        """Ends the loader and its processes."""


class HostLoader(BatchProducer, Protocol):
    """A loader whose batches are in host memory, before DeviceLoader copies them."""

    device_transform: DeviceTransform

    def next_batch(self) -> HostBatch:
        """The next batch, valid until the next call. Raises BenchError, which names the file or the process, if there is none."""


class Loader(BatchProducer, Protocol):
    """A loader whose batches are on the device: what a training reads from."""

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        """The next batch, on the device and in the memory layout asked for. Valid until the next call.

        Calls ``on_host_ready`` once, when the host has the batch and the compute stream does not yet wait for its copy. Raises BenchError,
        which names the file or the process, if there is no batch.
        """

    def pop_stats(self) -> LoaderStats | None:
        """What the workers did for the batches since the last call; None if unknown."""


LoaderFactory = Callable[[ResolvedConfig, Shard], Loader]
"""What gives a training its batches, called as ``open_loader`` is."""


class NoWorkersMixin:
    """What is the same in every loader whose samples lie on the device: nobody works ahead, and there is nothing to end."""

    max_prefetched = 0

    def pop_stats(self) -> None:
        return None

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass
