"""Batches of a loader in host memory, carried to the device: the one place where they cross, and where their coming is noted."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from ddpbench.data.batch_timing import BatchTimings
from ddpbench.data.device_copy import make_device_copy
from ddpbench.data.loader import Batch, HostLoader
from ddpbench.record.loader_stats import LoaderStats


class DeviceLoader:
    """The loader that ``host`` becomes on ``device``."""

    def __init__(self, host: HostLoader, device: torch.device) -> None:
        self.data, self.max_prefetched = host.data, host.max_prefetched
        self.host = host
        self.batch_bytes = 0  # what the last batch took on the wire
        self._copy_to_device = make_device_copy(device, host.device_transform)
        self._timings = BatchTimings()

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        asked = perf_counter()
        batch = self.host.next_batch()
        on_host_ready()
        self.batch_bytes = batch.samples.nbytes + batch.labels.nbytes
        if batch.worker_timing:
            self._timings.record(asked, len(batch.labels), batch.worker_timing)
        return self._copy_to_device(batch.samples, batch.labels)

    def pop_stats(self) -> LoaderStats | None:
        return self._timings.pop_stats()

    def worker_pids(self) -> list[int]:
        return self.host.worker_pids()

    def close(self) -> None:
        self.host.close()
