"""A training script as one might have it already, without a word of ddpbench. It trains a small network on samples that are slow to read.

From the root of a clone, alone and on two ranks:

    python docs/examples/train_script.py --epochs 2
    torchrun --nproc_per_node=2 docs/examples/train_script.py --workers 1
"""

import argparse
import os
import time
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LATENCY_S = 0.002


class Digits(Dataset[tuple[Tensor, int]]):
    """Random images of the size of a digit, each of which takes ``LATENCY_S`` to read."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(LATENCY_S)
        return torch.rand(1, 28, 28), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()

    model: nn.Module = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 13 * 13, 10))
    sampler: DistributedSampler[Any] | None = None
    digits = Digits(options.samples)
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(digits)
    training = DataLoader(digits, 16, sampler=sampler, num_workers=options.workers, drop_last=True)
    validation = DataLoader(Digits(64), 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    for epoch in range(options.epochs):
        for images, labels in training:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            correct = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in validation)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {correct} of 64 right")
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
