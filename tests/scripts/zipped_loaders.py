"""Semi-supervised training: a loader of labelled samples zipped with a slower one of unlabelled samples."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, samples: int, read_ms: float, is_labelled: bool) -> None:
        self.samples, self.read_ms, self.is_labelled = samples, read_ms, is_labelled

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        time.sleep(self.read_ms / 1000)
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(64, generator=generator)
        return (inputs, torch.tensor(index % 10)) if self.is_labelled else (inputs,)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--read-ms", type=float, default=2.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder, classifier = nn.Sequential(nn.Linear(64, 512), nn.ReLU()).to(device), nn.Linear(512, 10).to(device)
    optimizer = torch.optim.SGD([*encoder.parameters(), *classifier.parameters()], lr=0.05)
    labelled = DataLoader(Samples(args.samples, 0.0, True), batch_size=16, shuffle=True, num_workers=args.workers)
    unlabelled = DataLoader(Samples(args.samples, args.read_ms, False), batch_size=16, shuffle=True, num_workers=args.workers)

    for epoch in range(args.epochs):
        for (inputs, labels), (others,) in zip(labelled, unlabelled, strict=True):
            scores, other_scores = classifier(encoder(inputs.to(device))), classifier(encoder(others.to(device)))
            certainty = other_scores.softmax(1).amax(1).mean()
            loss = nn.functional.cross_entropy(scores, labels.to(device)) - 0.1 * certainty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
