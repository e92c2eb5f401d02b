"""Opening loaders in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpbench.data.loader import Batch, Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig

CPU = torch.device("cpu")
NO_DALI = pytest.mark.skipif(find_spec("nvidia") is None or find_spec("nvidia.dali") is None, reason="DALI is not installed")
FILE_LOADERS = ["torch", "torch-uint8", pytest.param("dali-cpu", marks=NO_DALI)]
RUNNABLE_FILE_LOADERS = ["torch", "torch-uint8", *([] if NO_DALI.args[0] else ["dali-cpu"])]
"""File loaders that can run here."""

ALL_LOADERS = ["synthetic", "replay", *FILE_LOADERS]
IN_MEMORY_LOADERS = ["torch", "tensor"]
"""Loaders of in-memory datasets."""

IMAGE_LOADERS = ["torch", "torch-uint8", "tensor"]
"""Loaders of in-memory image datasets."""

DEFAULT_IMAGE_SIZES = {"cifar10": 32, "mnist": 28, "disc": None, "gemm": None}


def config(loader: str, data_dir: Path | None = None, **asked: object) -> ResolvedConfig:
    """Resolved config of a small ImageNet-like training."""
    recipe = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "optimizer_impl": "fused"}
    settled = {"workload": "resnet18", "batch_size": 2, "image_size": 32, "workers": 1, "channels_last": True, "warmup": 1, **recipe}
    return ResolvedConfig(**{**settled, "loader": loader, "data_dir": str(data_dir) if data_dir else None, **asked})  # type: ignore[arg-type]


def memory_config(loader: str, dataset: str, data_dir: Path | None = None, **asked: object) -> ResolvedConfig:
    """Resolved config on an in-memory dataset; DataLoader loads in the main process."""
    return config(loader, data_dir, **{"image_size": DEFAULT_IMAGE_SIZES[dataset], "workers": 0, "channels_last": False, **asked})


def shard(dataset: str = "imagenet", classes: int = 1000, rank: int = 0, world_size: int = 1, device: torch.device = CPU) -> Shard:
    """A shard of one rank by default: the complete dataset."""
    return Shard(dataset, classes, rank, world_size, device)


@contextmanager
def opened(settled: ResolvedConfig, dataset: str = "imagenet", **which: Any) -> Iterator[Loader]:
    loader = open_loader(settled, shard(dataset, **which))
    try:
        yield loader
    finally:
        loader.close()


def take(loader: Loader, batches: int) -> Batch:
    """Samples and labels of the next ``batches`` batches, concatenated."""
    taken = []
    for _ in range(batches):
        images, labels = loader.next_batch(lambda: None)
        taken.append((images.clone(), labels.clone()))
    return torch.cat([images for images, _ in taken]), torch.cat([labels for _, labels in taken])
