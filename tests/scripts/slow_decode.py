"""Large JPEGs in a torchvision ImageFolder, decoded and resized by workers."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def write_images(folder: Path, images: int, side: int) -> None:
    """Write JPEGs of two classes: smooth random images, as photographs are."""
    generator = np.random.default_rng(0)
    for index in range(images):
        path = folder / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(exist_ok=True)
        colours = generator.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
        Image.fromarray(colours).resize((side, side)).save(path)


def train(folder: str, args: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    transform = transforms.Compose([transforms.Resize(36), transforms.RandomCrop(32), transforms.ToTensor()])
    images = datasets.ImageFolder(folder, transform)
    loader = DataLoader(images, batch_size=16, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", help="folder of images; they are generated without it")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.data:
        train(args.data, args)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_images(Path(folder), args.images, args.side)
            train(folder, args)


if __name__ == "__main__":
    main()
