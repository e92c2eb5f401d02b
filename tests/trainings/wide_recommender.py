"""Recommend films with DistributedDataParallel (torchrun): large dense tables of users and films, small batches."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

USERS, FILMS = 60_000, 20_000


class Matches(nn.Module):
    def __init__(self, width: int, is_sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, width, sparse=is_sparse)
        self.films = nn.Embedding(FILMS, width, sparse=is_sparse)
        self.score = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users: torch.Tensor, films: torch.Tensor) -> torch.Tensor:
        return self.score(torch.cat([self.users(users), self.films(films)], 1)).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--sparse", action="store_true", help="exchange the gradients of the rows of the batch only")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(1)
    rows = 51_200
    data = TensorDataset(
        torch.randint(USERS, (rows,), generator=generator),
        torch.randint(FILMS, (rows,), generator=generator),
        torch.rand(rows, generator=generator),
    )
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 256, sampler=sampler)
    model = DistributedDataParallel(Matches(32, args.sparse))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for users, films, stars in loader:
            loss = nn.functional.mse_loss(model(users, films), stars)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
