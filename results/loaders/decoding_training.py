"""Whether a training learns as much from images that NVIDIA DALI decodes and resizes as from those of the script's own DataLoader.

python results/loaders/decoding_training.py OUT.json --mnist FOLDER [--device cuda]

Handwritten digits, enlarged to JPEGs of 120 pixels, are cropped at random to 40. A small network is trained with five seeds on each loader;
digits of other writers, which PIL decodes for both, are recognised. Without a GPU, DALI decodes on the CPU.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from ddpbench.data.datasets import mnist
from ddpbench.data.in_memory import Split
from ddpbench.loaders.gpu_decoding import DecodingLoader

SEEDS, TRAIN_IMAGES, TEST_IMAGES, EPOCHS, SIDE, CROP = 5, 4000, 2000, 10, 120, 40
MAX_LR = 0.02


def write_images(directory: str, split: Split, number: int, folder: Path) -> None:
    data = mnist.read(directory, split)
    for index in range(number):
        path = folder / split / str(data.labels[index]) / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.samples[index, ..., 0]).resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB").save(path, quality=90)


def model() -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    return nn.Sequential(block(3, 16), block(16, 32), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def accuracy(folder: Path, seed: int, decodes: bool, device: torch.device) -> float:
    """Of a training, in percent."""
    torch.manual_seed(seed)
    to_tensor = [T.ToTensor(), T.Normalize((0.13,) * 3, (0.31,) * 3)]
    random_crop = T.Compose([T.RandomResizedCrop(CROP, (0.3, 1.0)), *to_tensor])
    loader = DataLoader(ImageFolder(folder / "train", random_crop), 64, shuffle=True, drop_last=True)
    batches = DecodingLoader(loader, device) if decodes else loader
    net = model().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=MAX_LR, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, MAX_LR, EPOCHS * len(loader))
    for _ in range(EPOCHS):
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images.to(device)), labels.to(device)).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    center = T.Compose([T.Resize(int(CROP * 1.15)), T.CenterCrop(CROP), *to_tensor])
    right = 0
    with torch.no_grad():
        for images, labels in DataLoader(ImageFolder(folder / "held-out", center), 200):
            right += int((net(images.to(device)).argmax(1).cpu() == labels).sum())
    return 100 * right / TEST_IMAGES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--mnist", required=True)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        write_images(args.mnist, "train", TRAIN_IMAGES, Path(name))
        write_images(args.mnist, "held-out", TEST_IMAGES, Path(name))
        device = torch.device(args.device, 0) if args.device == "cuda" else torch.device(args.device)
        found: dict[str, list[float]] = {"own": [], "decoded": []}
        for seed in range(SEEDS):
            for side, decodes in (("own", False), ("decoded", True)):
                found[side].append(accuracy(Path(name), seed, decodes, device))
                print(f"seed {seed}  {side:8}{found[side][-1]:.2f}%", flush=True)
    means, spread = [statistics.fmean(each) for each in found.values()], statistics.stdev(found["own"])
    result = {"device": args.device, "accuracy_percent": found, "difference_percent": means[1] - means[0], "own_stdev_percent": spread}
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    print(f"{means[1] - means[0]:+.2f} points, {spread:.2f} between the seeds of the script's own loader")


if __name__ == "__main__":
    main()
