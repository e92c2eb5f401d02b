"""Whatever code stands around a fused BatchNorm, a model gives the same results."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from fused import DEVICE
from fused_models import AddsToItself, Simple, assert_same_steps, images, on_device
from torch import Tensor, nn
from torch.nn import functional

from ddpbench.kernels import fuse
from ddpbench.kernels.deferred import FusedBatchNorm2d


class Shared(Simple):
    """Uses one BatchNorm in two places."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(functional.relu(self.bn(self.conv(x))))))


class SharedInSum(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)) + self.bn(x))


class Saves(Simple):
    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(x)
        self.saved.append(out)
        return out + self.saved[-1]


class Asks(Simple):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        normalized = self.bn(self.conv(x))
        assert normalized.shape == x.shape
        out = functional.relu(normalized) if isinstance(x, Tensor) else x
        return out if scale is None else out * scale


class Frozen(Simple):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            frozen = self.relu(x)
        return frozen + self.conv(x)


class InSeries(Simple):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(self.bn(self.conv(x))))


class AddsNumber(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)) + x.size(0))


class AddsMean(Simple):
    """Adds a tensor that is broadcast."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x.mean((2, 3), keepdim=True) + self.bn(self.conv(x)))


class Doubling(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class DoublesBetween(Simple):
    def __init__(self) -> None:
        super().__init__()
        self.between = Doubling()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.between(self.bn(self.conv(x))))


class IgnoresResults(Simple):
    """Changes tensors in place, and goes on with the names that it has."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn(self.conv(x))
        alias = out
        out += x
        functional.relu(out, inplace=True)
        return alias


class ChangesSummand(Simple):
    """Changes what it has added, which is deferred."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        summand = self.second(x)
        out = self.bn(self.conv(x)) + summand
        summand += x
        return functional.relu(out) + functional.relu(summand)


class Pools(Simple):
    def forward(self, x: Tensor) -> Tensor:
        activated = self.relu(x)
        return functional.max_pool2d(activated, 3, 2, 1) + functional.max_pool2d(activated, 2)


@pytest.mark.parametrize(
    "build",
    [
        Shared,
        SharedInSum,
        Saves,
        Asks,
        Frozen,
        InSeries,
        AddsNumber,
        AddsMean,
        DoublesBetween,
        IgnoresResults,
        Pools,
        AddsToItself,
        ChangesSummand,
    ],
)
def test_any_code_around_a_norm_gives_the_same_results(build: Callable[[], nn.Module]) -> None:
    """Whether its BatchNorm is fused or not; here all of them are made to be."""
    model = on_device(build())
    plain = copy.deepcopy(model)
    fuse(model)
    for norm in (each for each in model.modules() if isinstance(each, nn.BatchNorm2d)):
        norm.__class__ = FusedBatchNorm2d
        norm.pools = build is Pools
    assert_same_steps(model, plain, images())
    assert_same_steps(model, plain, images())


@pytest.mark.parametrize("which", ["input", "summand"])
def test_tensor_that_has_changed_too_early_is_an_error(which: str) -> None:
    """In torch a changed input is one in the backward pass; a changed summand is none there."""
    norm = FusedBatchNorm2d(3).to(DEVICE)
    y, summand = images().requires_grad_() * 1, images()
    out = norm(y) + summand
    (y if which == "input" else summand).zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        functional.relu(out)
