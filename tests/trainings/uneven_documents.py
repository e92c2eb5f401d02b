"""Train on documents with DistributedDataParallel (torchrun): each rank has its own file of them, and one file has the long ones."""

import argparse
import random
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler


class Documents(Dataset):
    """The documents of one rank, sorted by length: those of one file, or every second one of both."""

    def __init__(self, rank: int, ranks: int, shared: bool) -> None:
        rng = random.Random(11)
        lengths = sorted(rng.randint(20, 260) for _ in range(ranks * 2560))
        self.lengths = lengths[rank::ranks] if shared else lengths[rank * 2560 : (rank + 1) * 2560]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(1, 2000, (self.lengths[index],))


class Alike(Sampler[list[int]]):
    """Batches of similar length, in an order that all ranks have in common."""

    def __init__(self, number: int) -> None:
        self.starts, self.order = list(range(0, number, 8)), random.Random(1)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[list[int]]:
        self.order.shuffle(self.starts)
        yield from (list(range(start, start + 8)) for start in self.starts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--alike", action="store_true", help="share the files, and train on batches of similar length")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    data = Documents(dist.get_rank(), dist.get_world_size(), args.alike)
    padded = lambda documents: nn.utils.rnn.pad_sequence(documents, batch_first=True)  # noqa: E731
    batches = {"batch_sampler": Alike(len(data))} if args.alike else {"batch_size": 8, "shuffle": True}
    loader = DataLoader(data, **batches, collate_fn=padded, num_workers=1, persistent_workers=True)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(2000, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 2000)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        for words in loader:
            loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
