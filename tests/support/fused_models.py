"""Small models, plain and fused, and what a training step of each gives."""

from __future__ import annotations

import torch
from fused import DEVICE, channels_last
from residual_net import conv
from torch import Tensor, nn
from torch.nn import functional


def images(size: int = 8, batch: int = 4) -> Tensor:
    return channels_last(torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0)).to(DEVICE))


def step(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The outputs, gradients and state of a training step."""
    torch.manual_seed(1)
    out = model(x)
    out.square().sum().backward()
    named = {f"gradient of {name}": each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {"out": out.detach(), **named, **{name: value.clone() for name, value in model.state_dict().items()}}


def assert_same_steps(fused: nn.Module, plain: nn.Module, x: Tensor) -> None:
    first, second = step(fused, x), step(plain, x)
    assert first.keys() == second.keys()
    for name, value in second.items():
        torch.testing.assert_close(first[name], value, rtol=2e-3, atol=2e-3, msg=lambda text, name=name: f"{name}: {text}")


class Simple(nn.Module):
    """A convolution and a BatchNorm. Subclasses have a ReLU after it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.saved = conv(3, 3), nn.BatchNorm2d(3), []
        self.register_buffer("calls", torch.zeros(()))

    def relu(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class AddsToItself(Simple):
    def forward(self, x: Tensor) -> Tensor:
        normalized = self.bn(self.conv(x))
        return functional.relu(normalized + normalized)


def on_device(model: nn.Module) -> nn.Module:
    return model.to(DEVICE, memory_format=torch.channels_last)
