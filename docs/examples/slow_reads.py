"""A dataset whose reads wait, as on a network file system or in an object store: 15 ms per sample, however many are read at a time.

    cd docs/examples
    ddpbench diagnose mnist-cnn --loader slow_reads:train --workers 1
"""

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LATENCY_S = 0.015


class SlowReads(Dataset[tuple[Tensor, int]]):
    """Digits-sized random images, each of which arrives ``LATENCY_S`` after it was requested."""

    def __len__(self) -> int:
        return 65_536

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(LATENCY_S)
        return torch.rand(1, 28, 28), index % 10


def train(config: Any, rank: int, world_size: int) -> DataLoader[Any]:
    """The batches of one rank. ``config.workers`` is what ``--workers`` says."""
    images = SlowReads()
    sampler: DistributedSampler[Any] = DistributedSampler(images, world_size, rank)
    return DataLoader(images, config.batch_size, sampler=sampler, num_workers=config.workers, persistent_workers=config.workers > 0)
