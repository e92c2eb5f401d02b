"""Count cells in microscope images, with as many workers as the big server had that this was written on."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slides(Dataset):
    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        rng = np.random.default_rng(index)
        slide = rng.normal(size=(128, 128)).astype(np.float32)
        for _ in range(2):  # unsharp masks
            spectrum = np.fft.fft2(slide)
            slide = slide + 0.1 * np.fft.ifft2(spectrum * 0.9).real.astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(slide[::2, ::2]))[None], float(index % 30)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--workers", type=int, default=24)
    args = parser.parse_args()
    loader = DataLoader(Slides(), 16, shuffle=True, num_workers=args.workers, prefetch_factor=4)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for epoch in range(args.epochs):
        for slides, counts in loader:
            loss = nn.functional.mse_loss(model(slides).squeeze(1), counts.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
