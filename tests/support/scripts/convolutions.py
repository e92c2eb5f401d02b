"""Trains a ResNet-50 in channels-last order, in float16 on a GPU, on batches that are ready in memory. Without a word of ddpbench."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50

BATCHES, EPOCHS, BATCHES_IN_MEMORY = 40, 1000, 4


class Batches(Dataset):
    def __init__(self, batch: int, size: int, pinned: bool) -> None:
        images, labels = torch.randn(BATCHES_IN_MEMORY, batch, 3, size, size), torch.randint(0, 1000, (BATCHES_IN_MEMORY, batch))
        self.images, self.labels = (images.pin_memory(), labels.pin_memory()) if pinned else (images, labels)

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index % BATCHES_IN_MEMORY], self.labels[index % BATCHES_IN_MEMORY]


def main(batch: int, size: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    loader = DataLoader(Batches(batch, size, device.type == "cuda"), batch_size=None)
    model = resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    for _ in range(EPOCHS):
        for images, labels in loader:
            x, y = images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
