"""One batch that lies on the device and is trained on again and again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ddpbench.data.loader import Batch
from ddpbench.data.pixels import in_layout
from ddpbench.record.config import Config
from ddpbench.record.record import Data


def open_synthetic(config: Config, dataset: str, classes: int, rank: int, world_size: int, device: torch.device) -> Synthetic:
    """Standard normal pixels and uniform labels, drawn on the device from seed and rank."""
    assert config.batch_size, "settled"
    assert config.image_size, "settled"
    generator = torch.Generator(device).manual_seed(config.seed + rank)
    images = torch.randn(config.batch_size, 3, config.image_size, config.image_size, generator=generator, device=device)
    labels = torch.randint(classes, (config.batch_size,), generator=generator, device=device)
    return Synthetic((in_layout(images, config.channels_last), labels))


class Synthetic:
    """The loader ``synthetic``."""

    in_flight = 0

    def __init__(self, batch: Batch) -> None:
        self.data = Data(loader="synthetic", description="synthetic batch on the device")
        self._batch = batch

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        in_hand()
        return self._batch

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass
