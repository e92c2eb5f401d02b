"""From a Settled to a Loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ddpbench.data.catalogue import asked_for, find
from ddpbench.data.delivered import Delivered
from ddpbench.data.loader import HostLoader, Loader
from ddpbench.data.shard import Shard
from ddpbench.record.errors import UsageError
from ddpbench.record.names import resolve
from ddpbench.record.settled import Settled


def open_loader(config: Settled, shard: Shard, first_batch: int = 0, passed: Callable[[], object] = lambda: None) -> Loader:
    """The loader of ``config``, which is checked, for the rank of ``shard``; its workers start at once.

    Every call opens it at ``first_batch`` of the same order of samples, which begins with epoch 0. Random views of a sample
    are drawn anew: opened in the middle it gives others than one that has come there. One that can only begin with the first
    batch gives those before, and calls ``passed`` after each.
    """
    spec = find(config.loader)
    open_spec = resolve(spec.open)
    knows_where = "first_batch" in asked_for(open_spec)
    there = {"first_batch": first_batch} if knows_where else {}
    opened: Any = open_spec(config, shard, **there)
    loader = cast("Loader", opened) if spec.on_device else Delivered(opened, shard.device)
    for _ in range(0 if knows_where else first_batch):  # it begins with the first, always
        loader.next_batch(lambda: None)
        passed()
    return loader


def open_host(config: Settled, shard: Shard) -> HostLoader:
    """The same, before its batches are carried to the device. Raises UsageError for a loader that makes them there."""
    spec = find(config.loader)
    if spec.on_device:
        raise UsageError(f"loader '{spec.name}' makes its batches on the device", "its batches never lie in host memory")
    opened: HostLoader = resolve(spec.open)(config, shard)
    return opened
