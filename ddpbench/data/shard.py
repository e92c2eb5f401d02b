"""A rank's shard of a dataset and the device that trains on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddpbench.distributed.world import World
from ddpbench.record.registry import DATASETS


@dataclass(frozen=True)
class Shard:
    """The shard of ``dataset``, with ``classes`` classes, that one rank trains on, on its ``device``."""

    dataset: str
    classes: int
    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def from_world(cls, dataset: str, classes: int, world: World) -> Shard:
        """This rank's shard."""
        return cls(dataset, classes, world.rank, world.size, world.device.torch_device)

    @property
    def as_slice(self) -> slice:
        """Slice of this rank's samples in a dataset that is read once."""
        return slice(self.rank, None, self.world_size)

    def sample_shape(self, image_size: int | None) -> tuple[int, ...]:
        """Shape of one sample: (channels, S, S), S being ``image_size`` in pixels, or (features,)."""
        return DATASETS[self.dataset].input_shape(image_size, self.classes)
