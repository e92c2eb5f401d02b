"""Fine-tune a small vision model on a few photographs of one's plants; workers are spawned, as on Windows and macOS."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Plants(Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        photograph = Image.open(self.paths[index]).convert("RGB").resize((64, 64))
        return torch.from_numpy(np.array(photograph, np.float32) / 255).permute(2, 0, 1), index % 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "spawned_epochs"
    folder.mkdir(exist_ok=True)
    for number in range(320):
        if not (path := folder / f"{number:03d}.jpg").exists():
            Image.fromarray(np.random.default_rng(number).integers(0, 256, (96, 96, 3), np.uint8)).save(path)
    loader = DataLoader(
        *(Plants(folder), 16),
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.persistent,
        multiprocessing_context="spawn" if args.workers else None,
    )
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 5)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for epoch in range(args.epochs):
        for photographs, species in loader:
            loss = nn.functional.cross_entropy(model(photographs), species)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
