"""Workers that are forked or spawned, and that end or stay after an epoch. Augmentation is what they are busy with."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    """Random crops of large arrays, blurred."""

    def __init__(self, samples: int, blurs: int) -> None:
        self.samples, self.blurs = samples, blurs

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = np.random.default_rng(index).random((96, 96), dtype=np.float32)
        for _ in range(self.blurs):
            image = (image + np.roll(image, 1, 0) + np.roll(image, 1, 1)) / 3
        return torch.from_numpy(image[::6, ::6].copy()), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--blurs", type=int, default=60)
    parser.add_argument("--start", choices=["fork", "spawn", "forkserver"], default="spawn")
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(
        Augmented(args.samples, args.blurs),
        batch_size=16,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=args.start if args.workers else None,
        persistent_workers=args.persistent and args.workers > 0,
    )

    for epoch in range(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
