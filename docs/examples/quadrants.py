"""A workload of your own: a small MLP that learns in which quadrant a random point lies. And a loader for it.

From the root of a clone:

    bash launch/local.sh docs.examples.quadrants:WORKLOAD
    bash launch/local.sh docs.examples.quadrants:WORKLOAD --loader docs.examples.quadrants:train -j 1
"""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddpbench.workloads.spec import WorkloadSpec

POINTS = 65_536


def build(image_size: int | None, classes: int) -> nn.Module:
    """An MLP that maps points (B, 2) to scores (B, classes). ``image_size`` is None, because points are not images."""
    return nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes))


WORKLOAD = WorkloadSpec(
    name="quadrants-mlp",
    help="MLP with two hidden layers on random points",
    dataset="disc",  # samples of two numbers
    classes=4,
    model="docs.examples.quadrants:build",
    sample_unit="point",
    batch_cuda=1024,
    batch_cpu=128,
    lr=0.1,
    convolutional=False,
)


def train(config: Any, rank: int, world_size: int) -> DataLoader[Any]:
    """The batches of one rank: points, float32 (B, 2), and the index of their quadrant, int64 (B,)."""
    points = torch.empty(POINTS, 2).uniform_(-1, 1, generator=torch.Generator().manual_seed(config.seed))
    quadrants = (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()
    dataset = TensorDataset(points, quadrants)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, world_size, rank, seed=config.seed)
    return DataLoader(dataset, config.batch_size, sampler=sampler, num_workers=config.workers, persistent_workers=config.workers > 0)
