"""A dataset whose reads wait, as over a network: 10 ms per sample, and as many at a time as there are workers.

From the root of a clone:

    bash launch/local.sh diagnose mnist-cnn --loader docs.examples.slow_reads:train -j 1 -b 16
"""

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LATENCY_S = 0.010


class SlowReads(Dataset[tuple[Tensor, int]]):
    """Random images of the size of a digit, each of which arrives ``LATENCY_S`` after it was requested."""

    def __len__(self) -> int:
        return 65_536

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(LATENCY_S)
        return torch.rand(1, 28, 28), index % 10


def train(config: Any, rank: int, world_size: int) -> DataLoader[Any]:
    """The batches of one rank. ``config.workers`` is the value of ``--workers``."""
    images = SlowReads()
    sampler: DistributedSampler[Any] = DistributedSampler(images, world_size, rank)
    return DataLoader(images, config.batch_size, sampler=sampler, num_workers=config.workers, persistent_workers=config.workers > 0)
