"""The loader ``synthetic``: random batches on the device, reused every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import torch

from ddpbench.data.loader import Batch, NoWorkersMixin
from ddpbench.data.normalize import to_memory_format
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import DatasetInfo

GEMM_BATCHES = 50
"""As many as the published run of gemm-mlp keeps on its device."""


def open_synthetic(config: ResolvedConfig, shard: Shard) -> SyntheticLoader:
    """Open the loader ``synthetic``: one batch, or 50 for matrices.

    Standard normal inputs and uniform labels, drawn on the device from seed and rank. Targets of matrices are standard normal, too.
    """
    shape = (config.batch_size, *shard.sample_shape(config.image_size))
    generator = torch.Generator(shard.device).manual_seed(config.seed + shard.rank)

    def draw() -> Batch:
        inputs = to_memory_format(torch.randn(shape, generator=generator, device=shard.device), config.channels_last)
        if shard.dataset == "gemm":
            return inputs, torch.randn(shape, generator=generator, device=shard.device)
        return inputs, torch.randint(shard.classes, shape[:1], generator=generator, device=shard.device)

    return SyntheticLoader([draw() for _ in range(GEMM_BATCHES if shard.dataset == "gemm" else 1)], shard.dataset)


class SyntheticLoader(NoWorkersMixin):
    """Cycles through ``batches``, which have the shape of ``dataset``."""

    def __init__(self, batches: Sequence[Batch], dataset: str) -> None:
        self.data = DatasetInfo(loader=SYNTHETIC, dataset=dataset, num_batches=len(batches))
        self._batches = cycle(batches)

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        on_host_ready()
        return next(self._batches)
