"""Batches of a loader in host memory, carried to the device: the one place where they cross, and where their coming is noted."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from ddpbench.data.batch_timing import Arrivals
from ddpbench.data.device_copy import delivery
from ddpbench.data.loader import Batch, HostLoader
from ddpbench.record.loader_stats import Loading


class Delivered:
    """The loader that ``host`` becomes on ``device``."""

    def __init__(self, host: HostLoader, device: torch.device) -> None:
        self.data, self.in_flight = host.data, host.in_flight
        self.host = host
        self.batch_bytes = 0  # what the last batch took on the wire
        self._deliver = delivery(device, host.finish)
        self._arrivals = Arrivals()

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        asked = perf_counter()
        batch = self.host.next_batch()
        in_hand()
        self.batch_bytes = batch.samples.nbytes + batch.labels.nbytes
        if batch.sheet:
            self._arrivals.note(asked, len(batch.labels), batch.sheet)
        return self._deliver(batch.samples, batch.labels)

    def loading(self) -> Loading | None:
        return self._arrivals.told()

    def worker_pids(self) -> list[int]:
        return self.host.worker_pids()

    def close(self) -> None:
        self.host.close()
