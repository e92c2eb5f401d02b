"""Convolutions of images with a fourth channel of zeros: the same results, and where they run without."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused import DEVICE, channels_last
from torch import Tensor, nn

from ddpbench.kernels import fuse, images
from ddpbench.kernels.images import ImageConv2d, pad_images

DTYPES = [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]  # the interpreter truncates to bfloat16


@pytest.fixture
def padded_dtypes(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtypes in which images were padded."""
    found: list[torch.dtype] = []
    monkeypatch.setattr(images, "pad_images", lambda x, dtype: (found.append(dtype), pad_images(x, dtype))[1])
    return found


def results(convolution: nn.Conv2d, x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Output and gradients of the parameters, under autocast unless the convolution itself is in double precision."""
    with torch.autocast(DEVICE, dtype, enabled=x.dtype != torch.float64):
        out = convolution(x)
    parameters = [*convolution.parameters()]
    return [out.detach().double(), *(each.double() for each in torch.autograd.grad(out.square().mean(), parameters))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"kernel_size": 7, "stride": 2, "padding": 3, "bias": False}, (3, 3, 32, 32)),
        ({"kernel_size": 3, "dilation": 2, "padding": "same"}, (1, 3, 7, 13)),
        ({"kernel_size": 4, "stride": 4}, (5, 3, 17, 9)),
    ],
)
def test_padded_convolution_has_the_results_of_the_plain_one(
    dtype: torch.dtype, settings: dict[str, Any], shape: tuple[int, ...], padded_dtypes: list[torch.dtype]
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 8, **settings).to(DEVICE, memory_format=torch.channels_last)
    x = channels_last(torch.randn(shape, device=DEVICE))
    padded = fuse(copy.deepcopy(plain))
    assert type(padded) is ImageConv2d
    ours, theirs = results(padded, x, dtype), results(plain, x, dtype)
    assert padded_dtypes == [dtype]
    for value, torch_value, exact in zip(ours, theirs, results(plain.double(), x.double(), dtype), strict=True):
        rounding = torch.finfo(dtype).eps * exact.abs().max()
        assert (value - exact).abs().max() <= max(1.5 * (torch_value - exact).abs().max(), rounding)


def test_images_are_padded_with_zeros() -> None:
    x = channels_last(torch.randn(2, 3, 5, 7, device=DEVICE))
    x[0, 1, 2, 3] = torch.nan
    padded = pad_images(x, torch.float16)
    assert padded.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(padded[:, :3], x.half(), rtol=0, atol=0, equal_nan=True)
    assert not padded[:, 3].any()


def test_half_precision_model_needs_no_autocast(padded_dtypes: list[torch.dtype]) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 8, 3).to(DEVICE, torch.float16, memory_format=torch.channels_last)
    x = channels_last(torch.randn(2, 3, 8, 8, device=DEVICE, dtype=torch.float16))
    torch.testing.assert_close(fuse(copy.deepcopy(plain))(x), plain(x), rtol=2e-3, atol=2e-3)
    assert padded_dtypes == [torch.float16]


@pytest.mark.parametrize(
    "prepare",
    [
        lambda convolution, x: (convolution.eval(), x),
        lambda convolution, x: (convolution, x.contiguous()),
        lambda convolution, x: (convolution, x.clone().requires_grad_()),
        lambda _, x: (fuse(nn.Conv2d(3, 6, 3, groups=3).to(DEVICE)), x),
        lambda _, x: (fuse(nn.Conv2d(3, 6, 3, padding_mode="reflect", padding=1).to(DEVICE)), x),
    ],
    ids=["eval", "contiguous", "gradient", "groups", "reflect"],
)
def test_where_padding_does_not_apply_torch_runs(
    prepare: Callable[[nn.Module, Tensor], tuple[nn.Module, Tensor]], padded_dtypes: list[torch.dtype]
) -> None:
    convolution = fuse(nn.Conv2d(3, 8, 3).to(DEVICE, memory_format=torch.channels_last))
    convolution, x = prepare(convolution, channels_last(torch.randn(2, 3, 8, 8, device=DEVICE)))
    with torch.autocast(DEVICE, torch.float16):
        convolution(x)
    assert padded_dtypes == []


@pytest.mark.parametrize("channels", [1, 6])
def test_other_numbers_of_channels_fail_as_in_torch(channels: int) -> None:
    convolution = fuse(nn.Conv2d(3, 8, 3).to(DEVICE, memory_format=torch.channels_last))
    x = channels_last(torch.randn(2, channels, 8, 8, device=DEVICE))
    with torch.autocast(DEVICE, torch.float16), pytest.raises(RuntimeError, match="channels"):
        convolution(x)


def test_single_precision_and_evaluation_run_without_padding(padded_dtypes: list[torch.dtype]) -> None:
    convolution = fuse(nn.Conv2d(3, 8, 3).to(DEVICE, memory_format=torch.channels_last))
    x = channels_last(torch.randn(2, 3, 8, 8, device=DEVICE))
    convolution(x)
    with torch.no_grad(), torch.autocast(DEVICE, torch.float16):
        convolution(x)
    assert padded_dtypes == []
