"""Train a language model on a stream of compressed JSON lines, tokenised as they arrive; each worker reads its own files."""

import argparse
import gzip
import json
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

PIECES = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]")


def write_files(folder: Path, files: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(3000)]
    for number in range(files):
        with gzip.open(folder / f"part-{number:02d}.jsonl.gz", "wt") as file:
            for line in range(600):
                file.write(json.dumps({"id": line, "text": " ".join(rng.choices(words, k=120)) + f", {line}."}) + "\n")


class Stream(IterableDataset):
    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.gz"))

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        ids: list[int] = []
        for path in self.files[worker.id :: worker.num_workers] if worker else self.files:
            with gzip.open(path, "rt") as file:
                for line in file:
                    for piece in PIECES.findall(json.loads(line)["text"].lower()):
                        number = 0
                        for letter in piece:  # the same piece has the same number in every worker
                            number = (number * 31 + ord(letter)) % 4096
                        ids.append(number)
                    while len(ids) > 64:
                        yield torch.tensor(ids[:65])
                        ids = ids[64:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "json_lines"
    if not (folder / "part-07.jsonl.gz").exists():
        write_files(folder, 8)
    loader = DataLoader(Stream(folder), 16, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = nn.Sequential(nn.Embedding(4096, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        for ids in loader:
            loss = nn.functional.mse_loss(model(ids[:, :-1]), model[0](ids[:, 1:]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
