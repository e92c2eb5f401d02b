"""A background thread takes batches from the DataLoader and moves them to the device, ahead of the training."""

import argparse
import queue
import threading
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Readings(Dataset):
    def __init__(self, samples: int, read_ms: float) -> None:
        self.samples, self.read_ms = samples, read_ms

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.read_ms / 1000)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), index % 10


class Prefetcher:
    """Iterates over ``loader`` in a thread. Up to two batches wait on the device."""

    def __init__(self, loader: DataLoader, device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None

    def fill(self, ready: queue.Queue) -> None:
        for inputs, labels in self.loader:
            with torch.cuda.stream(self.stream):
                batch = inputs.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            if self.stream:
                self.stream.synchronize()
            ready.put(batch)
        ready.put(None)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        ready: queue.Queue = queue.Queue(maxsize=2)
        thread = threading.Thread(target=self.fill, args=(ready,), daemon=True)
        thread.start()
        yield from iter(ready.get, None)
        thread.join()


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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Readings(args.samples, args.read_ms), batch_size=16, num_workers=args.workers, pin_memory=torch.cuda.is_available())
    for epoch in range(args.epochs):
        for inputs, labels in Prefetcher(loader, device):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
