"""The loaders of a diagnosis' control runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

import msgspec
import torch

from ddpbench.data.device_copy import DeviceLoader
from ddpbench.data.loader import Batch, BatchProducer, HostBatch, HostLoader, Loader, LoaderFactory
from ddpbench.data.loaders.open import open_host_loader, open_loader
from ddpbench.data.loaders.replay import Replay
from ddpbench.data.registry import find_loader
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.diagnosis import BASELINE, LOADER_IN_BACKGROUND, REPLAY
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.loaders import SYNTHETIC

SEED_STRIDE = 7919
"""Seeds lie so far apart: a training takes the seeds next to its own for its rounds."""


class LoaderFactories:
    """Opens the loaders of one diagnosis on one rank."""

    def __init__(self) -> None:
        self._order_numbers = count(1)
        self._replayed: SharedHostLoader | None = None

    def for_label(self, label: str) -> LoaderFactory:
        """The opener of a training by its label."""
        return {BASELINE: self._open_baseline, LOADER_IN_BACKGROUND: self._open_in_background, REPLAY: self._open_replay}.get(
            label, open_loader
        )

    def with_new_file_order(self, config: ResolvedConfig) -> ResolvedConfig:
        """``config`` with an order of files of its own: what a turn has read lies in the page cache, and would be read again."""
        return msgspec.structs.replace(config, seed=(config.seed + SEED_STRIDE * next(self._order_numbers)) % 2**32)

    def keep_for_replay(self, host: HostLoader, device: torch.device, batches: int) -> None:
        """The next so many batches of ``host`` are those that are replayed, in every turn the same."""
        self._replayed = SharedHostLoader(Replay(host, device, batches))

    def close(self) -> None:
        """Nothing is opened any more."""
        if self._replayed:
            self._replayed.close_shared()
            self._replayed = None

    def _open_baseline(self, config: ResolvedConfig, shard: Shard) -> Loader:
        return open_loader(self.with_new_file_order(config), shard)

    def _open_in_background(self, config: ResolvedConfig, shard: Shard) -> Loader:
        resident = open_loader(msgspec.structs.replace(config, loader=SYNTHETIC, data_dir=None), shard)
        if not find_loader(config.loader).on_device:
            host = open_host_loader(self.with_new_file_order(config), shard)
            return BackgroundLoader(resident, host, host.next_batch)
        other = open_loader(self.with_new_file_order(config), shard)
        return BackgroundLoader(resident, other, _take_on_side_stream(other, shard.device))

    def _open_replay(self, config: ResolvedConfig, shard: Shard) -> Loader:
        assert self._replayed is not None, "no turn is laid out where nothing was kept"
        return DeviceLoader(self._replayed, shard.device)


class SharedHostLoader:
    """Batches in host memory that several sessions are given, one after the other; what each has of them on the device is its own."""

    def __init__(self, host: HostLoader) -> None:
        self.data, self.max_prefetched, self.device_transform = host.data, host.max_prefetched, host.device_transform
        self._host = host

    def next_batch(self) -> HostBatch:
        return self._host.next_batch()

    def worker_pids(self) -> list[int]:
        return self._host.worker_pids()

    def close(self) -> None:
        """A session is over, and the next one will come."""

    def close_shared(self) -> None:
        """None will come."""
        self._host.close()


def _take_on_side_stream(loader: Loader, device: torch.device) -> Callable[[], object]:
    """Takes batches that are made on the device, for which the stream that trains then does not wait."""
    if device.type != "cuda":
        return lambda: loader.next_batch(lambda: None)
    stream = torch.cuda.Stream(device)

    def take() -> None:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            loader.next_batch(lambda: None)
        stream.synchronize()

    return take


class BackgroundLoader:
    """Gives the batches of ``resident``, and for each takes one of ``working`` and drops it, in a thread that nobody waits for.

    As many as are trained on, also where the host issues all steps of a round long before the device is done with them. A loader that
    is slower than the training is always behind, and never rests. ``take`` takes its next batch.
    """

    max_prefetched = 0

    def __init__(self, synthetic_loader: Loader, background: BatchProducer, take: Callable[[], object]) -> None:
        self.data = synthetic_loader.data
        self._synthetic_loader, self._background, self._take = synthetic_loader, background, take
        self._pending, self._closing = 0, False
        self._batch_size = self._images_taken = 0  # images in each, and all that were taken
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="ddpbench-beside", daemon=True)
        self._thread.start()

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        if self._error:
            raise self._error
        batch = self._synthetic_loader.next_batch(on_host_ready)
        with self._changed:
            self._batch_size = len(batch[1])
            self._pending += 1
            self._changed.notify()
        return batch

    def pop_stats(self) -> LoaderStats:
        """How many images were taken since the last call. What is owed from before it is let off: it would be taken beside other steps."""
        with self._changed:
            taken, self._images_taken, self._pending = self._images_taken, 0, 0
        return LoaderStats(images=taken)

    def worker_pids(self) -> list[int]:
        return self._background.worker_pids()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._background.close()
        self._synthetic_loader.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if self._closing:
                    return
                self._pending -= 1
            try:
                self._take()
            except Exception as problem:  # the training's own thread raises it
                self._error = problem
                return
            with self._changed:
                self._images_taken += self._batch_size
