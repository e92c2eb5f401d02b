"""A small GAN: two networks, two optimizers, three backward passes per batch. Its data are in memory."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NOISE, POINT = 32, 64


def network(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, outputs))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--samples", type=int, default=16384)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator, discriminator = network(NOISE, POINT, args.width).to(device), network(POINT, 1, args.width).to(device)
    update_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    update_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    points = TensorDataset(torch.randn(args.samples, POINT) * torch.linspace(0.5, 2.0, POINT))
    loader = DataLoader(points, batch_size=64, shuffle=True, drop_last=True, num_workers=args.workers)
    loss_of = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1, device=device), torch.zeros(64, 1, device=device)

    for epoch in range(args.epochs):
        for (real,) in loader:
            update_discriminator.zero_grad()
            loss_of(discriminator(real.to(device)), ones).backward()
            fake = generator(torch.randn(64, NOISE, device=device))
            loss_of(discriminator(fake.detach()), zeros).backward()
            update_discriminator.step()

            update_generator.zero_grad()
            loss = loss_of(discriminator(fake), ones)
            loss.backward()
            update_generator.step()
        print(f"epoch {epoch}: generator loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
