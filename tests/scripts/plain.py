"""A plain training loop with a validation after every epoch. Each sample takes a while to read."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Readings(Dataset):
    """Vectors and their classes, read from a slow disk."""

    def __init__(self, samples: int, read_ms: float) -> None:
        self.samples, self.read_ms = samples, read_ms

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.read_ms / 1000)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--read-ms", type=float, default=2.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train = DataLoader(Readings(args.samples, args.read_ms), batch_size=16, shuffle=True, num_workers=args.workers)
    test = DataLoader(Readings(64, args.read_ms), batch_size=16)

    for epoch in range(args.epochs):
        model.train()
        for inputs, labels in train:
            inputs, labels = inputs.to(device), labels.to(device)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = sum(int((model(inputs.to(device)).argmax(1) == labels.to(device)).sum()) for inputs, labels in test)
        print(f"epoch {epoch}: loss {loss.item()!r}, {correct} of 64 correct", flush=True)


if __name__ == "__main__":
    main()
