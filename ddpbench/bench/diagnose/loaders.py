"""The loaders of a diagnosis' control runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import torch

from ddpbench.data.background import BackgroundTaker
from ddpbench.data.device_copy import DeviceLoader
from ddpbench.data.loader import Batch, BatchProducer, HostBatch, HostLoader, Loader, LoaderFactory
from ddpbench.data.loaders.open import open_host_loader, open_loader
from ddpbench.data.loaders.replay import Replay
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.loaders import SYNTHETIC, find_loader
from ddpbench.record.roles import BASELINE, LOADER_IN_BACKGROUND, REPLAY, Role

SEED_STRIDE = 7919
"""Distance between the seeds of two file orders; a training uses consecutive seeds for its rounds."""


class LoaderFactories:
    """Opens the loaders of one diagnosis on one rank."""

    def __init__(self) -> None:
        self._order_numbers = count(1)
        self._replayed: SharedHostLoader | None = None

    def for_role(self, role: Role) -> LoaderFactory:
        """The loader factory of the control run with that role."""
        return {BASELINE: self._open_baseline, LOADER_IN_BACKGROUND: self._open_in_background, REPLAY: self._open_replay}.get(
            role, open_loader
        )

    def with_new_file_order(self, config: ResolvedConfig) -> ResolvedConfig:
        """``config`` with a new order of files: those that an earlier turn read first are in the page cache."""
        return msgspec.structs.replace(config, seed=(config.seed + SEED_STRIDE * next(self._order_numbers)) % 2**32)

    def keep_for_replay(self, host: HostLoader, device: torch.device, batches: int) -> None:
        """Keep the next ``batches`` batches of ``host`` and replay them in every round of the replay arm."""
        self._replayed = SharedHostLoader(Replay(host, device, batches))

    def close(self) -> None:
        """Free the batches that are kept for replay; call after the last round."""
        if self._replayed:
            self._replayed.close_shared()
            self._replayed = None

    def _open_baseline(self, config: ResolvedConfig, shard: Shard) -> Loader:
        return open_loader(self.with_new_file_order(config), shard)

    def _open_in_background(self, config: ResolvedConfig, shard: Shard) -> Loader:
        synthetic = open_loader(msgspec.structs.replace(config, loader=SYNTHETIC, data_dir=None), shard)
        if not find_loader(config.loader).on_device:
            host = open_host_loader(self.with_new_file_order(config), shard)
            return BackgroundLoader(synthetic, host, host.next_batch)
        background = open_loader(self.with_new_file_order(config), shard)
        return BackgroundLoader(synthetic, background, _take_on_side_stream(background, shard.device))

    def _open_replay(self, config: ResolvedConfig, shard: Shard) -> Loader:
        assert self._replayed is not None, "this arm only runs if batches were kept for replay"
        return DeviceLoader(self._replayed, shard.device)


class SharedHostLoader:
    """Batches in host memory shared by successive sessions; each session has its own copies on the device."""

    def __init__(self, host: HostLoader) -> None:
        self.data, self.max_prefetched, self.device_transform = host.data, host.max_prefetched, host.device_transform
        self._host = host

    def next_batch(self) -> HostBatch:
        return self._host.next_batch()

    def worker_pids(self) -> list[int]:
        return self._host.worker_pids()

    def close(self) -> None:
        """Do nothing: the next session uses the same batches."""

    def close_shared(self) -> None:
        """Close the host loader after the last session."""
        self._host.close()


def _take_on_side_stream(loader: Loader, device: torch.device) -> Callable[[], object]:
    """A function that takes and drops one batch; batches on a GPU use a side stream, so that the training's stream does not wait."""
    if device.type != "cuda":
        return lambda: loader.next_batch(lambda: None)
    stream = torch.cuda.Stream(device)

    def take() -> None:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            loader.next_batch(lambda: None)
        stream.synchronize()

    return take


class BackgroundLoader:
    """Delivers batches of ``synthetic_loader``; for each, a thread takes one batch of ``background`` by ``take`` and drops it."""

    max_prefetched = 0

    def __init__(self, synthetic_loader: Loader, background: BatchProducer, take: Callable[[], object]) -> None:
        self.data = synthetic_loader.data
        self._synthetic_loader, self._background = synthetic_loader, background
        self._batch_size = 0
        self._taker = BackgroundTaker(take)

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        self._taker.request()
        batch = self._synthetic_loader.next_batch(on_host_ready)
        self._batch_size = len(batch[1])
        return batch

    def pop_stats(self) -> LoaderStats:
        """Images taken in the background since the last call."""
        return LoaderStats(samples=self._batch_size * self._taker.pop_taken())

    def worker_pids(self) -> list[int]:
        return self._background.worker_pids()

    def close(self) -> None:
        self._taker.close()
        self._background.close()
        self._synthetic_loader.close()
