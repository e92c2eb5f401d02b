"""Copies batches from the host to the device without making the host wait."""

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
    """A function from host images and labels to device images and labels. On the CPU nothing is copied beyond ``device_transform``."""
    if device.type == "cuda":
        return SideStreamCopy(device, device_transform)
    return lambda images, labels: (device_transform(images), labels)


@dataclass
class _Slot:
    """Room for one batch on the device."""

    images: Tensor
    labels: Tensor
    free: torch.cuda.Event  # the compute stream is done with it

    def holds(self, images: Tensor, labels: Tensor) -> bool:
        """Whether a batch of these is as large: into a larger slot torch would copy a single image many times over."""
        return (self.images.shape, self.labels.shape) == (images.shape, labels.shape)


class SideStreamCopy:
    """Copies batches from pinned memory on a side stream, into two slots in turn, so that a copy overlaps the step before it.

    A batch of another size, as the last of a held-out set is, gets a new slot in the place of the one whose turn it is. The side
    stream waits until the compute stream has left the slot that it overwrites; the compute stream waits for the copy.
    A batch may be used by all that is issued on the current stream until the next call.
    """

    def __init__(self, device: torch.device, device_transform: DeviceTransform) -> None:
        self._device, self._device_transform = device, device_transform
        self._side = torch.cuda.Stream(device)
        self._last: _Slot | None = None
        self._next: _Slot | None = None

    def __call__(self, images: Tensor, labels: Tensor) -> Batch:
        compute = torch.cuda.current_stream(self._device)
        if self._last:
            self._last.free.record(compute)  # all that reads the last batch has been issued
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
        slot.free.record(torch.cuda.current_stream(self._device))  # the memory may be another tensor's until here
        return slot


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
