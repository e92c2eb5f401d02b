"""A plain training script: ResNet-18 with a 3x3 stem on random images of CIFAR's shape, in float32, with four workers."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18

BATCH_SIZE, EPOCHS, SAMPLES = 128, 1000, 50_000


def build_model() -> nn.Module:
    model = resnet18(weights=None, num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.randint(0, 256, (SAMPLES, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (SAMPLES,))
    data = TensorDataset(images, labels)
    loader = DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, num_workers=4, pin_memory=True, drop_last=True)
    mean = torch.tensor([0.4914, 0.4822, 0.4465], device=device).view(1, 3, 1, 1)
    std = torch.tensor([0.2470, 0.2435, 0.2616], device=device).view(1, 3, 1, 1)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    for epoch in range(EPOCHS):
        begin_s, seen = time.time(), 0
        for step, (x, y) in enumerate(loader):
            x = x.to(device).float().div(255).sub(mean).div(std)
            loss = nn.functional.cross_entropy(model(x), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {seen / (time.time() - begin_s):.0f} images/s", flush=True)
        scheduler.step()


if __name__ == "__main__":
    main()
