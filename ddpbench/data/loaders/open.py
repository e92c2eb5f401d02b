"""Opens the loader that a ResolvedConfig selects."""

from __future__ import annotations

from typing import Any, cast

from ddpbench.data.device_copy import DeviceLoader
from ddpbench.data.loader import HostLoader, Loader, LoaderFactory
from ddpbench.data.shard import Shard
from ddpbench.distributed.collectives import run_on_all_ranks
from ddpbench.distributed.world import World
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import find_loader
from ddpbench.record.names import import_object


def open_loader(config: ResolvedConfig, shard: Shard) -> Loader:
    """Open the loader of ``config``, already checked, for the rank of ``shard``.

    Its workers start at once. Every call begins at the first batch of epoch 0.
    """
    spec = find_loader(config.loader)
    opened: Any = import_object(spec.factory)(config, shard)
    return cast("Loader", opened) if spec.on_device else DeviceLoader(opened, shard.device)


def open_host_loader(config: ResolvedConfig, shard: Shard) -> HostLoader:
    """Like ``open_loader``, but without the copy to the device.

    Raises UsageError for a loader that prepares its batches on the device.
    """
    spec = find_loader(config.loader)
    if spec.on_device:
        raise UsageError(f"loader '{spec.name}' prepares its batches on the device", "choose a loader with batches in host memory")
    opened: HostLoader = import_object(spec.factory)(config, shard)
    return opened


def open_on_all_ranks(loader_factory: LoaderFactory, world: World) -> LoaderFactory:
    """Wrap ``loader_factory`` for loaders that may not work here: each must deliver a batch on every rank before it is used."""

    def opened(config: ResolvedConfig, shard: Shard) -> Loader:
        def open_with_first_batch() -> Loader:
            loader = loader_factory(config, shard)
            try:
                loader.next_batch(lambda: None)
            except BaseException:
                loader.close()
                raise
            return loader

        return run_on_all_ranks(world, open_with_first_batch, lambda loader: loader.close())

    return opened
