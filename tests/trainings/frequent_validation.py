"""Predict the load of a power grid; every 40 steps the model is validated, with a loader that starts its workers each time."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def windows(seed: int, number: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    load = torch.randn(number, 48, 8, generator=generator).cumsum(1)
    return TensorDataset(load[:, :-1], load[:, -1, 0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--validation-workers", type=int, default=6)
    args = parser.parse_args()
    training = DataLoader(windows(0, 12_800), 64, shuffle=True, num_workers=1, persistent_workers=True)
    validation = DataLoader(windows(1, 2560), 64, num_workers=args.validation_workers)
    recurrent, head = nn.GRU(8, 64, batch_first=True), nn.Linear(64, 1)
    optimizer = torch.optim.Adam([*recurrent.parameters(), *head.parameters()], 1e-3)

    def loss_of(history: torch.Tensor, load: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(head(recurrent(history)[0][:, -1]).squeeze(1), load)

    step = 0
    for epoch in range(args.epochs):
        for history, load in training:
            loss = loss_of(history, load)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.every == 0:
                with torch.no_grad():
                    losses = [loss_of(*batch).item() for batch in validation]
                print(f"epoch {epoch}, step {step}: validation loss {sum(losses) / len(losses):.4f}", flush=True)


if __name__ == "__main__":
    main()
