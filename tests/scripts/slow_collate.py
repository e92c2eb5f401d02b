"""Texts of different lengths, put together by an expensive collate function."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        return [(index * 31 + position) % 500 for position in range(40 + index % 60)], index % 4


def collate(samples: list[tuple[list[int], int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts of words, without the words that are rare in the batch; token by token in Python."""
    counts = torch.zeros(len(samples), 500)
    for row, (text, _) in enumerate(samples):
        for token in text:
            if sum(token in other for other, _ in samples) > 1:
                counts[row, token] += 1
    return counts, torch.tensor([label for _, label in samples])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(500, 256), nn.ReLU(), nn.Linear(256, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Texts(args.samples), batch_size=16, shuffle=True, num_workers=args.workers, collate_fn=collate)

    for epoch in range(args.epochs):
        for counts, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(counts.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
