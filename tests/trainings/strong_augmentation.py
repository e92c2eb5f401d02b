"""Classify photographs with strong random distortions, which cost much more than the small network; all cores have a worker."""

import argparse

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Distorted(Dataset):
    def __init__(self, number: int, cheap: bool) -> None:
        self.photographs = np.random.default_rng(1).integers(0, 256, (number, 96, 96, 3), np.uint8)
        self.cheap = cheap

    def __len__(self) -> int:
        return len(self.photographs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        photograph = Image.fromarray(self.photographs[index])
        if self.cheap:
            photograph = photograph.crop((8, 8, 88, 88)).resize((64, 64))
        else:
            photograph = photograph.resize((192, 192), Image.Resampling.BICUBIC).rotate(float(torch.rand(1)) * 30, Image.Resampling.BICUBIC)
            photograph = photograph.filter(ImageFilter.GaussianBlur(2)).filter(ImageFilter.MedianFilter(3)).resize((64, 64))
        return torch.from_numpy(np.array(photograph, np.float32)).permute(2, 0, 1) / 255, index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cheap", action="store_true", help="only crop")
    args = parser.parse_args()
    loader = DataLoader(Distorted(1600, args.cheap), 16, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = nn.Sequential(nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for epoch in range(args.epochs):
        for photographs, kinds in loader:
            loss = nn.functional.cross_entropy(model(photographs), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
