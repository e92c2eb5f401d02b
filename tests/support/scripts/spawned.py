"""A training script that starts its ranks itself."""

import sys
import time

import torch
from torch import multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(rank: int, seconds: float) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 8)), 4):
        model(x).sum().backward()
        optimizer.step()
    print(f"rank {rank} has trained")
    time.sleep(seconds)


if __name__ == "__main__":
    mp.spawn(train, args=(float(sys.argv[1]) if sys.argv[1:] else 0.0,), nprocs=2)
