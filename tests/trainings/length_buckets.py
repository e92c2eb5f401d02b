"""Train a sentiment model on reviews of all lengths; a batch sampler gathers reviews of similar length."""

import argparse
import random
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Reviews(Dataset):
    def __init__(self, number: int) -> None:
        rng = random.Random(5)
        self.lengths = [min(400, int(rng.expovariate(1 / 40)) + 5) for _ in range(number)]
        self.words = torch.randint(1, 5000, (400,), generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.words[: self.lengths[index]], index % 2


class SimilarLengths(Sampler[list[int]]):
    """Each batch begins with a random review that is left, and takes those that are closest to it in length."""

    def __init__(self, lengths: list[int], batch_size: int) -> None:
        self.lengths, self.batch_size = lengths, batch_size

    def __len__(self) -> int:
        return len(self.lengths) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        left = list(range(len(self.lengths)))
        random.shuffle(left)
        for _ in range(len(self)):
            length = self.lengths[left[-1]]
            left.sort(key=lambda index: abs(self.lengths[index] - length), reverse=True)
            batch, left = left[-self.batch_size :], left[: -self.batch_size]
            random.shuffle(left)
            yield batch


class SortedOnce(SimilarLengths):
    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(range(len(self.lengths)), key=lambda index: self.lengths[index] + random.random())
        starts = [number * self.batch_size for number in range(len(self))]
        random.shuffle(starts)
        yield from (order[start : start + self.batch_size] for start in starts)


def padded(reviews: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return nn.utils.rnn.pad_sequence([words for words, _ in reviews], batch_first=True), torch.tensor([mood for _, mood in reviews])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sort-once", action="store_true")
    args = parser.parse_args()
    data = Reviews(16_000)
    sampler = (SortedOnce if args.sort_once else SimilarLengths)(data.lengths, 32)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=padded, num_workers=args.workers, persistent_workers=args.workers > 0)
    embedding, head = nn.EmbeddingBag(5000, 64, padding_idx=0), nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], 1e-3)
    for epoch in range(args.epochs):
        for words, moods in loader:
            loss = nn.functional.cross_entropy(head(embedding(words)), moods)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
