"""Gradient accumulation with autocast, gradient clipping and a schedule, by hand."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, samples: int, read_ms: float) -> None:
        self.samples, self.read_ms = samples, read_ms

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.read_ms / 1000)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(20, 32, generator=generator), torch.randn(1, generator=generator)


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, 1)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(clips)[0][:, -1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--read-ms", type=float, default=4.0)
    parser.add_argument("--accumulate", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Regressor().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Clips(args.samples, args.read_ms), batch_size=8, shuffle=True, num_workers=args.workers)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=args.epochs * (len(loader) // args.accumulate))

    for epoch in range(args.epochs):
        for index, (clips, targets) in enumerate(loader):
            with torch.autocast(device.type, torch.bfloat16):
                loss = nn.functional.mse_loss(model(clips.to(device)).float(), targets.to(device)) / args.accumulate
            loss.backward()
            if (index + 1) % args.accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
