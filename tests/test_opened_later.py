"""A loader that is opened at a later batch gives the samples of one that has come there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imagery
import pytest
import torch
from loading import LIKE_TORCH, config, of_memory, shard, take

from ddpbench.data.open import open_loader
from ddpbench.record.settled import Settled

MNIST_CLASSES, RANK, RANKS = 10, 1, 2


def digits(config: Settled, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A loader of one's own, which knows of no first batch: labels count the batches."""
    assert config.batch_size
    for batch in range(5):
        yield torch.zeros(config.batch_size, 1, 28, 28), torch.full((config.batch_size,), batch)


def seen(settled: Settled, dataset: str, classes: int, first_batch: int, batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    loader = open_loader(settled, shard(dataset, classes, RANK, RANKS), first_batch)
    try:
        return take(loader, batches)
    finally:
        loader.close()


@pytest.mark.parametrize("loader", ["tensor", "torch", "torch-uint8", "replay", f"{__name__}:digits"])
def test_of_what_lies_in_memory(loader: str, tmp_path: Path) -> None:
    settled = of_memory(loader, "mnist", imagery.mnist(tmp_path), batch_size=7, seed=3)
    through, later = (seen(settled, "mnist", MNIST_CLASSES, first, 12 - first) for first in (0, 8))
    assert_alike(later, [part[8 * 7 :] for part in through])


@pytest.mark.parametrize("loader", LIKE_TORCH)
def test_of_files(loader: str, tmp_path: Path) -> None:
    settled = config(loader, imagery.image_tree(tmp_path), augment=False)
    through, later = (seen(settled, "imagenet", 1000, first, 6 - first) for first in (0, 4))
    assert_alike(later, [part[4 * 2 :] for part in through])


def test_every_batch_that_is_passed_by_is_told() -> None:
    settled, passed = of_memory(f"{__name__}:digits", "mnist", batch_size=2), []
    loader = open_loader(settled, shard("mnist", MNIST_CLASSES, RANK, RANKS), 3, lambda: passed.append("one"))
    loader.close()
    assert len(passed) == 3


def assert_alike(later: Any, rest: Any) -> None:
    assert all(torch.equal(*parts) for parts in zip(later, rest, strict=True))
