"""Accelerate with gradient accumulation and a learning rate schedule.

accelerate launch --multi_gpu --num_processes=2 with_accelerate.py
"""

import argparse
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    """Token indices and a label, as a dict. Each one is read from a slow disk."""

    def __init__(self, samples: int, read_ms: float) -> None:
        self.samples, self.read_ms = samples, read_ms

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.read_ms / 1000)
        generator = torch.Generator().manual_seed(index)
        return {"tokens": torch.randint(1000, (32,), generator=generator), "label": torch.tensor(index % 4)}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(1000, 128)
        self.head = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--read-ms", type=float, default=2.0)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator(
        gradient_accumulation_steps=args.accumulate,
        mixed_precision="bf16" if args.bf16 else "no",
        cpu=not torch.cuda.is_available(),
    )
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * args.samples)
    loader = DataLoader(Sentences(args.samples, args.read_ms), batch_size=16, shuffle=True, num_workers=args.workers)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    for epoch in range(args.epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["tokens"]), batch["label"])
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), "mean")
        accelerator.print(f"epoch {epoch}: loss {mean.item()!r}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
