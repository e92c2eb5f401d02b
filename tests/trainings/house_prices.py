"""Predict prices from a table: every sample is one row of a pandas DataFrame."""

import argparse

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

FEATURES = [f"feature_{number}" for number in range(40)]


def sales(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    table = pd.DataFrame(rng.normal(size=(rows, len(FEATURES))), columns=FEATURES)
    table["rooms"] = rng.integers(1, 8, rows)
    table["price"] = table[FEATURES[:8]].sum(axis=1) + table["rooms"]
    return table


class Sales(Dataset):
    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.table.iloc[index]
        return torch.tensor(row[FEATURES].to_numpy(np.float32)), torch.tensor(row["price"], dtype=torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--tensors", action="store_true", help="convert the table to tensors once")
    args = parser.parse_args()
    table = sales(20_000)
    data: Dataset = Sales(table)
    if args.tensors:
        data = TensorDataset(torch.tensor(table[FEATURES].to_numpy(np.float32)), torch.tensor(table["price"].to_numpy(np.float32)))
    loader = DataLoader(data, 128, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        for features, prices in loader:
            loss = nn.functional.mse_loss(model(features).squeeze(1), prices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
