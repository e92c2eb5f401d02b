"""Large batches that are copied to the GPU from pageable memory, and a network that needs little time for them."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """Batches of float32 volumes that are in memory already: reading one costs nothing."""

    def __init__(self, batches: int, mebibytes: int) -> None:
        self.batches, self.volumes = batches, torch.randn(4, 16, mebibytes * 16384)

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.volumes[index % 4], torch.arange(16) % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--mebibytes", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda")
    pool = args.mebibytes * 16384 // 256
    model = nn.Sequential(nn.AvgPool1d(pool), nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Volumes(args.batches, args.mebibytes), batch_size=None)

    for epoch in range(args.epochs):
        for volumes, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(volumes.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
