"""Global average pooling of fused models: the results of torch, and a gradient in channels-last order."""

from __future__ import annotations

import pytest
import torch
from fused import DEVICE, channels_last
from torch import Tensor, nn

from ddpbench.kernels import fuse
from ddpbench.kernels.modules import GlobalAvgPool2d


def fused_pool(size: object = 1) -> nn.Module:
    return fuse(nn.Sequential(nn.AdaptiveAvgPool2d(size)))[0]  # type: ignore[arg-type]


def results(pool: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient that the pooling passes on."""
    passed: list[Tensor] = []
    doubled = 2 * x.clone().requires_grad_()
    doubled.register_hook(passed.append)
    out = pool(doubled)
    (out * torch.arange(out.shape[1], device=DEVICE, dtype=out.dtype)[:, None, None]).sum().backward()
    return out.detach(), passed[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(4, 16, 7, 7), (1, 3, 2, 5), (2, 8, 1, 1)], ids=str)
def test_results_are_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = channels_last(torch.randn(shape, device=DEVICE).to(dtype))
    pool = fused_pool((1, 1))
    assert type(pool) is GlobalAvgPool2d
    ours, theirs = results(pool, x), results(nn.AdaptiveAvgPool2d((1, 1)), x)
    for value, torch_value in zip(ours, theirs, strict=True):
        torch.testing.assert_close(value, torch_value)
    assert ours[1].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(4, 16, 7, 7), (16, 7, 7)], ids=str)
def test_other_inputs_run_as_in_torch(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device=DEVICE)
    torch.testing.assert_close(fused_pool()(x), nn.AdaptiveAvgPool2d(1)(x))


@pytest.mark.parametrize("size", [2, (1, None)], ids=str)
def test_pooling_to_several_pixels_stays(size: object) -> None:
    assert type(fused_pool(size)) is nn.AdaptiveAvgPool2d


def test_output_size_that_is_changed_later_is_used() -> None:
    pool = fused_pool()
    assert isinstance(pool, GlobalAvgPool2d)
    pool.output_size = 2
    assert pool(channels_last(torch.randn(2, 3, 4, 4, device=DEVICE))).shape == (2, 3, 2, 2)
