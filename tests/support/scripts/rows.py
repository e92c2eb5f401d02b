"""Trains on rows that lie in memory, or that a sampler draws slowly. Without a word of ddpbench.

python rows.py tensors    fetches rows of a TensorDataset one by one
python rows.py sampler    one worker waits for the indices of each batch
"""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset


class Slow(Sampler[list[int]]):
    def __len__(self) -> int:
        return 2000

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            time.sleep(0.02)
            yield torch.randint(1000, (32,)).tolist()


class Rows(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((16,), float(index)), index % 2


def main(kind: str) -> None:
    if kind == "tensors":
        data = TensorDataset(torch.randn(100_000, 16), torch.randint(0, 2, (100_000,)))
        loader = DataLoader(data, batch_size=1000, shuffle=True)
    else:
        loader = DataLoader(Rows(), batch_sampler=Slow(), num_workers=1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(10_000):
        for rows, labels in loader:
            loss = nn.functional.cross_entropy(net(rows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
