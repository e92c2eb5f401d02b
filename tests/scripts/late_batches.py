"""Rows of a remote table, of which a few take long: four workers are enough on average, but they wait for a late batch."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    """One row in ``late_every`` takes ``late_ms`` to arrive, the others hardly any time."""

    def __init__(self, rows: int, late_every: int, late_ms: float) -> None:
        self.rows, self.late_every, self.late_ms = rows, late_every, late_ms

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index % self.late_every == 0:
            time.sleep(self.late_ms / 1000)
        features = torch.randn(64, generator=torch.Generator().manual_seed(index))
        return features, features.sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--late-every", type=int, default=640)
    parser.add_argument("--late-ms", type=float, default=400.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Table(args.rows, args.late_every, args.late_ms), batch_size=16, shuffle=True, num_workers=args.workers)
    for epoch in range(args.epochs):
        for features, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features.to(device)).squeeze(1), targets.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
