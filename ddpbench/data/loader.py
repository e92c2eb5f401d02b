"""Loader protocols: batches in host memory, or on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.record import DatasetInfo

Batch = tuple[Tensor, Tensor]
"""Images (B, C, S, S) or vectors (B, F), and labels, int64 (B,), or targets for a squared error, float32 (B, F).

Samples are float32; a loader that prepares them on the device may return them in the dtype of the first layer.
"""

DeviceTransform = Callable[[Tensor], Tensor]
"""Applied to the samples on the training device: memory layout and, for some loaders, dtype and normalisation."""


@dataclass(frozen=True)
class WorkerTiming:
    """Timing of one batch in its worker.

    Clocks are ``time.perf_counter``, which on Linux all processes of a host share.
    """

    start_s: float
    end_s: float
    cpu_s: Mapping[str, float] = field(default_factory=dict)  # by stage, see record.loader_stats.STAGES
    wall_s: Mapping[str, float] = field(default_factory=dict)
    skipped_files: tuple[BenchError, ...] = ()  # unreadable files that others replaced; a loader returns only new ones
    runqueue_wait_s: float | None = None  # seconds runnable without a free core; None if unknown
    parts_s: Mapping[str, float] = field(default_factory=dict)  # wall seconds of the transforms, by class
    samples: int | None = None  # in the batch, as far as its worker counts them


@dataclass(frozen=True)
class HostBatch:
    """A batch in host memory: the samples before ``device_transform``, and the labels of a Batch."""

    samples: Tensor
    labels: Tensor
    worker_timing: WorkerTiming | None = None

    def pin_memory(self) -> HostBatch:
        """A copy in page-locked memory. DataLoader's pin thread calls this method by name."""
        return replace(self, samples=self.samples.pin_memory(), labels=self.labels.pin_memory())


class BatchProducer(Protocol):
    """An endless stream of full batches of this rank's shard, reshuffled every epoch.

    Batches continue across the end of an epoch, so that nothing stalls, no sample is lost and every rank gets as many batches as it asks
    for.
    """

    data: DatasetInfo
    max_prefetched: int  # maximum number of batches ready after a pause

    def worker_pids(self) -> list[int]:
        """Process ids of the loader's workers."""

    def close(self) -> None:
        """Close the loader and end its processes."""


class HostLoader(BatchProducer, Protocol):
    """A loader whose batches are in host memory, before DeviceLoader copies them."""

    device_transform: DeviceTransform

    def next_batch(self) -> HostBatch:
        """The next batch, valid until the next call.

        Raises BenchError, which names the file or process, if it fails.
        """


class Loader(BatchProducer, Protocol):
    """A loader whose batches are on the device, as the training loop reads them."""

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        """The next batch, on the device in the requested memory layout.

        It is valid until the next call. Calls ``on_host_ready`` once, when the host has the batch and the compute stream does not yet
        wait for its copy. Raises BenchError, which names the file or process, if it fails.
        """

    def pop_stats(self) -> LoaderStats | None:
        """Worker stats of the batches since the last call; None if unknown."""


LoaderFactory = Callable[[ResolvedConfig, Shard], Loader]
"""Creates a loader; same signature as ``open_loader``."""


class NoWorkersMixin:
    """Methods of loaders whose samples are on the device: no workers, nothing prefetched, nothing to close."""

    max_prefetched = 0

    def pop_stats(self) -> None:
        return None

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


@runtime_checkable
class LoaderWithWorkers(Protocol):
    """A loader that waits for worker processes."""

    def stalled_worker(self) -> str:
        """The worker that the loader waits for, in words; empty if it waits for none."""
