"""A small ResNet."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


class Block(nn.Module):
    """A block of a ResNet, with an optional shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = (
            conv(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            conv(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)) if stride > 1 else None
        self.dropout = 0.0

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return functional.dropout(self.relu(out), self.dropout, self.training)


class Net(nn.Module):
    """A ResNet of three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.pool = conv(3, 8), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 12, 2), Block(12, 12))
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.pool(functional.relu(self.bn(self.conv(x))))).mean((2, 3)))
