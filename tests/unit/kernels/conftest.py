from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fused import DEVICE
from residual_net import Net

from ddpbench.kernels import deferred
from ddpbench.machine.backends import set_tf32


@pytest.fixture(autouse=True)
def _convolutions_in_float32() -> Iterator[None]:
    """Rounded to TF32, convolutions of inputs that differ by one rounding differ by a thousandth."""
    set_tf32(False)
    yield
    set_tf32(None)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().to(DEVICE, memory_format=torch.channels_last)


@pytest.fixture
def kernel_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the feature maps that kernels have normalized."""
    shapes: list[tuple[int, ...]] = []
    run = deferred.batch_statistics_of
    monkeypatch.setattr(deferred, "batch_statistics_of", lambda y, norm: (shapes.append(tuple(y.shape)), run(y, norm))[1])
    return shapes
