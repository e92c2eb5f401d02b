"""Copies batches from the host to the device without blocking the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from ddpbench.data.batch_timing import BatchTimings
from ddpbench.data.loader import Batch, DeviceTransform, HostLoader
from ddpbench.record.loader_stats import LoaderStats


def make_device_copy(device: torch.device, device_transform: DeviceTransform) -> Callable[[Tensor, Tensor], Batch]:
    """A function from host images and labels to device images and labels.

    On the CPU it only applies ``device_transform``.
    """
    if device.type == "cuda":
        return SideStreamCopy(device, device_transform)
    return lambda images, labels: (device_transform(images), labels)


@dataclass
class _Slot:
    """Device memory for one batch."""

    images: Tensor
    labels: Tensor
    free: torch.cuda.Event  # the compute stream has finished with it

    def holds(self, images: Tensor, labels: Tensor) -> bool:
        """Whether the shapes match: ``copy_`` into a larger slot would broadcast a single image."""
        return (self.images.shape, self.labels.shape) == (images.shape, labels.shape)


class SideStreamCopy:
    """Copies batches from pinned memory on a side stream.

    Two slots alternate, so that a copy overlaps the previous step. A batch of another size, such as the last one of a held-out set, gets
    a new slot in place of the next one. The side stream waits until the compute stream has finished with the slot that it overwrites; the
    compute stream waits for the copy. A batch is valid for all work issued on the current stream until the next call.
    """

    def __init__(self, device: torch.device, device_transform: DeviceTransform) -> None:
        self._device, self._device_transform = device, device_transform
        self._side = torch.cuda.Stream(device)
        self._last: _Slot | None = None
        self._next: _Slot | None = None

    def __call__(self, images: Tensor, labels: Tensor) -> Batch:
        compute = torch.cuda.current_stream(self._device)
        if self._last:
            self._last.free.record(compute)  # all work that reads the last batch has been issued
        slot = self._next if self._next and self._next.holds(images, labels) else self._new_slot(images, labels)
        self._side.wait_event(slot.free)
        with torch.cuda.stream(self._side):
            slot.images.copy_(images, non_blocking=True)
            slot.labels.copy_(labels, non_blocking=True)
        compute.wait_stream(self._side)
        self._last, self._next = slot, self._last
        return self._device_transform(slot.images), slot.labels

    def _new_slot(self, images: Tensor, labels: Tensor) -> _Slot:
        slot = _Slot(torch.empty_like(images, device=self._device), torch.empty_like(labels, device=self._device), torch.cuda.Event())
        slot.free.record(torch.cuda.current_stream(self._device))  # until this point another tensor may use the memory
        return slot


class DeviceLoader:
    """Copies the batches of a HostLoader to the device and times their arrival."""

    def __init__(self, host: HostLoader, device: torch.device) -> None:
        self.data, self.max_prefetched = host.data, host.max_prefetched
        self.host = host
        self.batch_bytes = 0  # bytes copied for the last batch
        self._copy_to_device = make_device_copy(device, host.device_transform)
        self._timings = BatchTimings()

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        requested_s = perf_counter()
        batch = self.host.next_batch()
        on_host_ready()
        self.batch_bytes = batch.samples.nbytes + batch.labels.nbytes
        if batch.worker_timing:
            self._timings.record(requested_s, len(batch.labels), batch.worker_timing)
        return self._copy_to_device(batch.samples, batch.labels)

    def pop_stats(self) -> LoaderStats | None:
        return self._timings.pop_stats()

    def worker_pids(self) -> list[int]:
        return self.host.worker_pids()

    def close(self) -> None:
        self.host.close()
