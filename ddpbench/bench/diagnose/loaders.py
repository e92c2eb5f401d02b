"""What gives each training of a diagnosis its batches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import torch

from ddpbench.bench.diagnose.background_loader import BackgroundLoader
from ddpbench.data.device_loader import DeviceLoader
from ddpbench.data.loader import HostBatch, HostLoader, Loader, LoaderFactory
from ddpbench.data.loaders.open import open_host_loader, open_loader
from ddpbench.data.loaders.replay import Replay
from ddpbench.data.registry import find_loader
from ddpbench.data.shard import Shard
from ddpbench.record.diagnosis import BASELINE, LOADER_IN_BACKGROUND, REPLAY
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.resolved import ResolvedConfig

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
