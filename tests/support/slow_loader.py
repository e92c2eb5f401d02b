"""A loader that takes DELAY_S per batch."""

from __future__ import annotations

import os
import time

import msgspec
from delayed_loader import DelayedLoader

from ddpbench.data.loaders.synthetic import open_synthetic
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loaders import LoaderSpec

DELAY_S = float(os.environ.get("DELAY_S", "0.05"))


def open_slow(config: ResolvedConfig, shard: Shard) -> DelayedLoader:
    loader = DelayedLoader(open_synthetic(config, shard), lambda: time.sleep(DELAY_S))
    loader.data = msgspec.structs.replace(loader.data, loader="slow")
    return loader


slow = LoaderSpec(
    name="slow", help="a slow loader", factory="slow_loader:open_slow", reads_dataset=False, on_device=True, datasets=("cifar10",)
)
