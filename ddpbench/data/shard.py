"""Who is given batches: one rank, its share of a data set, and the device where it trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddpbench.distributed.world import World
from ddpbench.record.registry import DATASETS


@dataclass(frozen=True)
class Shard:
    """The share of ``dataset``, of so many ``classes``, that one rank trains on, on its ``device``."""

    dataset: str
    classes: int
    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def from_world(cls, dataset: str, classes: int, world: World) -> Shard:
        """This rank's."""
        return cls(dataset, classes, world.rank, world.size, world.device.torch_device)

    @property
    def as_slice(self) -> slice:
        """Where its samples stand in a set of which every one is seen once."""
        return slice(self.rank, None, self.world_size)

    def sample_shape(self, image_size: int | None) -> tuple[int, ...]:
        """The shape of one sample: (channels, S, S), S being ``image_size`` in pixels, or (features,)."""
        return DATASETS[self.dataset].input_shape(image_size, self.classes)
