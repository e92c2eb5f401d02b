"""What gives each training of a diagnosis its batches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import torch

from ddpbench.bench.diagnose.background_loader import Beside
from ddpbench.data.device_loader import Delivered
from ddpbench.data.loader import HostBatch, HostLoader, Loader, Opener
from ddpbench.data.loaders.open import open_host, open_loader
from ddpbench.data.loaders.replay import Replay
from ddpbench.data.registry import find
from ddpbench.data.shard import Shard
from ddpbench.record.diagnosis import BESIDE, REAL, REPLAY
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.resolved import Settled

APART = 7919
"""Seeds lie so far apart: a training takes the seeds next to its own for its rounds."""


class Openers:
    """Opens the loaders of one diagnosis on one rank."""

    def __init__(self) -> None:
        self._turns = count(1)
        self._replayed: SharedHostLoader | None = None

    def of(self, label: str) -> Opener:
        """The opener of a training by its label."""
        return {REAL: self._real, BESIDE: self._beside, REPLAY: self._replay}.get(label, open_loader)

    def elsewhere(self, config: Settled) -> Settled:
        """``config`` with an order of files of its own: what a turn has read lies in the page cache, and would be read again."""
        return msgspec.structs.replace(config, seed=(config.seed + APART * next(self._turns)) % 2**32)

    def keep(self, host: HostLoader, device: torch.device, batches: int) -> None:
        """The next so many batches of ``host`` are those that are replayed, in every turn the same."""
        self._replayed = SharedHostLoader(Replay(host, device, batches))

    def close(self) -> None:
        """Nothing is opened any more."""
        if self._replayed:
            self._replayed.let_go()
            self._replayed = None

    def _real(self, config: Settled, shard: Shard) -> Loader:
        return open_loader(self.elsewhere(config), shard)

    def _beside(self, config: Settled, shard: Shard) -> Loader:
        resident = open_loader(msgspec.structs.replace(config, loader=SYNTHETIC, data_dir=None), shard)
        if not find(config.loader).on_device:
            host = open_host(self.elsewhere(config), shard)
            return Beside(resident, host, host.next_batch)
        other = open_loader(self.elsewhere(config), shard)
        return Beside(resident, other, _on_a_stream_of_its_own(other, shard.device))

    def _replay(self, config: Settled, shard: Shard) -> Loader:
        assert self._replayed is not None, "no turn is laid out where nothing was kept"
        return Delivered(self._replayed, shard.device)


class SharedHostLoader:
    """Batches in host memory that several sessions are given, one after the other; what each has of them on the device is its own."""

    def __init__(self, host: HostLoader) -> None:
        self.data, self.in_flight, self.finish = host.data, host.in_flight, host.finish
        self._host = host

    def next_batch(self) -> HostBatch:
        return self._host.next_batch()

    def worker_pids(self) -> list[int]:
        return self._host.worker_pids()

    def close(self) -> None:
        """A session is over, and the next one will come."""

    def let_go(self) -> None:
        """None will come."""
        self._host.close()


def _on_a_stream_of_its_own(loader: Loader, device: torch.device) -> Callable[[], object]:
    """Takes batches that are made on the device, for which the stream that trains then does not wait."""
    if device.type != "cuda":
        return lambda: loader.next_batch(lambda: None)
    stream = torch.cuda.Stream(device)

    def take() -> None:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            loader.next_batch(lambda: None)
        stream.synchronize()

    return take
