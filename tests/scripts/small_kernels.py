"""A deep and narrow network on a GPU: each kernel is shorter than its launch. With --log the loss is read after every step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear, self.scale = nn.LayerNorm(width), nn.Linear(width, width), nn.Parameter(torch.ones(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.scale * torch.tanh(self.linear(self.norm(inputs)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=32768)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--log", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda")
    model = nn.Sequential(*[Block(args.width) for _ in range(args.layers)], nn.Linear(args.width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    data = TensorDataset(torch.randn(args.samples, args.width), torch.arange(args.samples) % 10)
    loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=args.workers, pin_memory=True)

    for epoch in range(args.epochs):
        running = 0.0
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device, non_blocking=True)), labels.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            if args.log:
                running += loss.item()
        print(f"epoch {epoch}: loss {loss.item()!r}, sum {running:.3f}", flush=True)


if __name__ == "__main__":
    main()
