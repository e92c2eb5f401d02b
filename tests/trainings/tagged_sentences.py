"""Tag the words of sentences: the collate function looks up words and their letters, and pads both, in plain Python."""

import argparse
import random
import string

import torch
from torch import nn
from torch.utils.data import DataLoader

LETTERS = {letter: number for number, letter in enumerate(string.ascii_lowercase, 2)}


def sentences(number: int) -> list[list[tuple[str, int]]]:
    rng = random.Random(2)
    lexicon = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 14))) for _ in range(4000)]
    return [[(rng.choice(lexicon), rng.randrange(9)) for _ in range(rng.randint(5, 40))] for _ in range(number)]


def padded(batch: list[list[tuple[str, int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(sentence) for sentence in batch)
    letters = max(len(word) for sentence in batch for word, _ in sentence)
    spelled, tags = [], []
    for sentence in batch:
        rows = [[LETTERS.get(letter, 1) for letter in word] + [0] * (letters - len(word)) for word, _ in sentence]
        spelled.append(rows + [[0] * letters] * (longest - len(sentence)))
        tags.append([tag for _, tag in sentence] + [-100] * (longest - len(sentence)))
    return torch.tensor(spelled), torch.tensor(tags)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(28, 16, padding_idx=0)
        self.context, self.tags = nn.Conv1d(16, 32, 3, padding=1), nn.Linear(32, 9)

    def forward(self, spelled: torch.Tensor) -> torch.Tensor:
        words = self.letters(spelled).mean(2)
        return self.tags(self.context(words.transpose(1, 2)).relu().transpose(1, 2))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    loader = DataLoader(
        *(sentences(9600), 64), shuffle=True, collate_fn=padded, num_workers=args.workers, persistent_workers=args.workers > 0
    )  # fmt: skip
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        for spelled, tags in loader:
            loss = nn.functional.cross_entropy(model(spelled).flatten(0, 1), tags.flatten(), ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
