"""Batches from a generator function, without a DataLoader."""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import nn


def batches(count: int, read_ms: float) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for index in range(count):
        time.sleep(read_ms / 1000)
        generator = torch.Generator().manual_seed(index)
        yield torch.randn(16, 64, generator=generator), torch.randint(10, (16,), generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batches", type=int, default=512)
    parser.add_argument("--read-ms", type=float, default=30.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        for inputs, labels in batches(args.batches, args.read_ms):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
