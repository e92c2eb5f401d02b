"""Trains on batches of some megabytes that one worker loads slowly, as in a container whose shared memory holds few of them."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH = 2000, 8


class Volumes(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((8, 20_000), index / SAMPLES), index % 4


if __name__ == "__main__":
    model = nn.Linear(20_000, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(100):
        for volumes, labels in DataLoader(Volumes(), BATCH, shuffle=True, num_workers=1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(volumes[:, 0]), labels).backward()
            optimizer.step()
