"""torchdata's StatefulDataLoader, whose position is saved with the model in the middle of an epoch."""

import argparse
import io
import time

import torch
from torch import nn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader


class Readings(Dataset):
    def __init__(self, samples: int, read_ms: float) -> None:
        self.samples, self.read_ms = samples, read_ms

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.read_ms / 1000)
        generator = torch.Generator().manual_seed(index)
        return {"inputs": torch.randn(64, generator=generator), "label": torch.tensor(index % 10)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--read-ms", type=float, default=2.0)
    parser.add_argument("--save-every", type=int, default=200)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = StatefulDataLoader(Readings(args.samples, args.read_ms), batch_size=16, shuffle=True, num_workers=args.workers)

    for epoch in range(args.epochs):
        for index, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["inputs"].to(device)), batch["label"].to(device))
            loss.backward()
            optimizer.step()
            if (index + 1) % args.save_every == 0:
                torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, io.BytesIO())
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
