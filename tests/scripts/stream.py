"""An IterableDataset that gives each worker its share of the files, as a web dataset does."""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    """Records of many files. Reading one takes a while."""

    def __init__(self, files: int, records: int, read_ms: float) -> None:
        self.files, self.records, self.read_ms = files, records, read_ms

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for file in range(first, self.files, stride):
            generator = torch.Generator().manual_seed(file)
            for record in range(self.records):
                time.sleep(self.read_ms / 1000)
                yield torch.randn(128, generator=generator), record % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--records", type=int, default=128)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--read-ms", type=float, default=2.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Shards(args.files, args.records, args.read_ms), batch_size=16, num_workers=args.workers)

    for epoch in range(args.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
