"""A model compiled by torch.compile. It computes more than its data take to load."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--backend", default="inductor")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = [nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(4)]
    network = nn.Sequential(nn.Linear(64, args.width), *layers, nn.Linear(args.width, 10)).to(device)
    model = torch.compile(network, backend=args.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(args.samples, 64), torch.arange(args.samples) % 10)
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=args.workers)

    for epoch in range(args.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
