"""Convolutions of images over blocks of pixels: the same results, and where they run over pixels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fused import DEVICE, channels_last
from torch import Tensor, nn

from ddpbench.kernels import fuse, images
from ddpbench.kernels.images import ImageConv2d, space_to_depth
from ddpbench.machine.backends import set_tf32

DTYPES = [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]  # the interpreter truncates to bfloat16


@pytest.fixture
def block_dtypes(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtypes of the blocks that were made."""
    found: list[torch.dtype] = []
    monkeypatch.setattr(images, "space_to_depth", lambda x, dtype, *sides: (found.append(dtype), space_to_depth(x, dtype, *sides))[1])
    return found


def results(convolution: nn.Conv2d, x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Output and gradients of the parameters, under autocast unless the convolution itself is in double precision."""
    with torch.autocast(DEVICE, dtype, enabled=x.dtype != torch.float64):
        out = convolution(x)
    assert out.is_contiguous(memory_format=torch.channels_last) or x.dtype == torch.float64
    torch.manual_seed(1)
    wanted = torch.randn(out.shape, device=DEVICE)
    parameters = [*convolution.parameters()]
    return [out.detach().double(), *(each.double() for each in torch.autograd.grad((out * wanted).mean(), parameters))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"kernel_size": 7, "stride": 2, "padding": 3, "bias": False}, (3, 3, 32, 32)),
        ({"kernel_size": 3, "stride": 2, "padding": 1}, (1, 3, 7, 8)),
        ({"kernel_size": 3, "padding": 1}, (2, 3, 5, 16)),
        ({"kernel_size": (2, 5), "stride": (3, 2), "padding": (0, 1)}, (2, 3, 11, 25)),
        ({"kernel_size": 4, "stride": 4}, (5, 3, 17, 9)),
        ({"kernel_size": 1, "stride": 8}, (1, 3, 8, 8)),
    ],
)
def test_convolution_over_blocks_has_the_results_of_the_plain_one(
    dtype: torch.dtype, settings: dict[str, Any], shape: tuple[int, ...], block_dtypes: list[torch.dtype]
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 8, **settings).to(DEVICE, memory_format=torch.channels_last)
    x = channels_last(torch.randn(shape, device=DEVICE))
    over_blocks = fuse(copy.deepcopy(plain))
    assert type(over_blocks) is ImageConv2d
    ours, theirs = results(over_blocks, x, dtype), results(plain, x, dtype)
    assert block_dtypes == [dtype]
    for value, torch_value, exact in zip(ours, theirs, results(plain.double(), x.double(), dtype), strict=True):
        rounding = torch.finfo(dtype).eps * exact.abs().max()
        assert (value - exact).abs().max() <= max(1.5 * (torch_value - exact).abs().max(), rounding)


def test_blocks_hold_the_pixels_of_the_image_and_zeros_around_it() -> None:
    x = channels_last(torch.randn(2, 3, 5, 7, device=DEVICE))
    x[0, 1, 2, 3] = torch.nan
    blocks = space_to_depth(x, torch.float16, 4, 2, 2, 1, 3)
    assert blocks.is_contiguous(memory_format=torch.channels_last)
    canvas = nn.functional.pad(x.half(), (3, 16 - 3 - 7, 1, 8 - 1 - 5))
    wanted = canvas.reshape(2, 3, 4, 2, 2, 8).permute(0, 3, 5, 1, 2, 4).reshape(2, 48, 4, 2)
    torch.testing.assert_close(blocks, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.cuda
def test_more_elements_than_32_bits_count() -> None:
    x = torch.zeros(15_000, 3, 224, 224, dtype=torch.float16, device="cuda").contiguous(memory_format=torch.channels_last)
    x[-1] = torch.randn(3, 224, 224)
    blocks = space_to_depth(x, torch.float16, 115, 29, 2, 3, 3)
    assert min(x.numel(), blocks.numel()) > 2**31
    assert torch.equal(blocks[-1:], space_to_depth(channels_last(x[-1:]), torch.float16, 115, 29, 2, 3, 3))
    assert not blocks[:-1].any()


def test_half_precision_model_needs_no_autocast(block_dtypes: list[torch.dtype]) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 8, 3, padding=1).to(DEVICE, torch.float16, memory_format=torch.channels_last)
    x = channels_last(torch.randn(2, 3, 8, 8, device=DEVICE, dtype=torch.float16))
    torch.testing.assert_close(fuse(copy.deepcopy(plain))(x), plain(x), rtol=2e-3, atol=2e-3)
    assert block_dtypes == [torch.float16]


@pytest.fixture
def fp32_precision() -> Iterator[Callable[[str], None]]:
    """``fp32_precision("ieee")`` sets that precision of convolutions through torch's newer setting; "tf32" is the other."""

    def choose(value: str) -> None:
        torch.backends.cudnn.conv.fp32_precision = value  # type: ignore[attr-defined]

    yield choose
    set_tf32(None)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_single_precision_runs_over_blocks_where_it_is_tf32(
    precision: str, block_dtypes: list[torch.dtype], fp32_precision: Callable[[str], None]
) -> None:
    fp32_precision(precision)
    convolution = fuse(nn.Conv2d(3, 8, 3, padding=1).to(DEVICE, memory_format=torch.channels_last))
    convolution(channels_last(torch.randn(2, 3, 8, 8, device=DEVICE)))
    assert block_dtypes == [torch.float32] * (precision == "tf32")


@pytest.mark.parametrize(
    "settings",
    [
        {"groups": 3},
        {"padding_mode": "reflect"},
        {"padding": "same"},
        {"dilation": 2, "padding": 2},
        {"stride": 3},
        {"padding": 0},
    ],
    ids=str,
)
def test_convolution_that_blocks_do_not_fit_runs_over_pixels(settings: dict[str, Any], block_dtypes: list[torch.dtype]) -> None:
    convolution = fuse(nn.Conv2d(3, 6, 3, **{"padding": 1, **settings}).to(DEVICE, memory_format=torch.channels_last))
    with torch.autocast(DEVICE, torch.float16):
        convolution(channels_last(torch.randn(2, 3, 8, 8, device=DEVICE)))
    assert block_dtypes == []


@pytest.mark.parametrize(
    "prepare",
    [
        lambda convolution, x: (convolution.eval(), x),
        lambda convolution, x: (convolution, x.contiguous()),
        lambda convolution, x: (convolution, x.clone().requires_grad_()),
    ],
    ids=["eval", "contiguous", "gradient"],
)
def test_input_that_blocks_do_not_fit_runs_over_pixels(
    prepare: Callable[[nn.Module, Tensor], tuple[nn.Module, Tensor]], block_dtypes: list[torch.dtype]
) -> None:
    convolution = fuse(nn.Conv2d(3, 8, 3, padding=1).to(DEVICE, memory_format=torch.channels_last))
    convolution, x = prepare(convolution, channels_last(torch.randn(2, 3, 8, 8, device=DEVICE)))
    with torch.autocast(DEVICE, torch.float16):
        convolution(x)
    assert block_dtypes == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("stride", (3, 3)), ("stride", (16, 16)), ("dilation", (2, 2)), ("padding", "same"), ("padding_mode", "reflect"), ("stride", (2, 2))],
    ids=str,
)
def test_setting_that_is_changed_after_fusing_is_used(name: str, value: Any) -> None:
    plain = nn.Conv2d(3, 8, 3, padding=1).to(DEVICE, memory_format=torch.channels_last)
    if name == "padding_mode":  # which sets this in the constructor
        plain._reversed_padding_repeated_twice = [1, 1, 1, 1]
    fused = fuse(copy.deepcopy(plain))
    for each in (plain, fused):
        setattr(each, name, value)
    x = channels_last(torch.randn(2, 3, 16, 16, device=DEVICE))
    with torch.autocast(DEVICE, torch.float16):
        torch.testing.assert_close(fused(x), plain(x), rtol=1e-2, atol=1e-2)


def test_empty_batch_and_frozen_weights_run_as_in_torch(block_dtypes: list[torch.dtype]) -> None:
    convolution = fuse(nn.Conv2d(3, 8, 3, padding=1).to(DEVICE, memory_format=torch.channels_last)).requires_grad_(False)
    with torch.autocast(DEVICE, torch.float16):
        assert convolution(channels_last(torch.randn(0, 3, 8, 8, device=DEVICE))).shape == (0, 8, 8, 8)
        assert block_dtypes == []
        assert not convolution(channels_last(torch.randn(2, 3, 8, 8, device=DEVICE))).requires_grad
    assert block_dtypes == [torch.float16]


@pytest.mark.parametrize("channels", [1, 6])
def test_other_numbers_of_channels_fail_as_in_torch(channels: int) -> None:
    convolution = fuse(nn.Conv2d(3, 8, 3, padding=1).to(DEVICE, memory_format=torch.channels_last))
    x = channels_last(torch.randn(2, channels, 8, 8, device=DEVICE))
    with torch.autocast(DEVICE, torch.float16), pytest.raises(RuntimeError, match="channels"):
        convolution(x)


def test_evaluation_without_gradients_runs_over_pixels(block_dtypes: list[torch.dtype]) -> None:
    convolution = fuse(nn.Conv2d(3, 8, 3, padding=1).to(DEVICE, memory_format=torch.channels_last))
    with torch.no_grad(), torch.autocast(DEVICE, torch.float16):
        convolution(channels_last(torch.randn(2, 3, 8, 8, device=DEVICE)))
    assert block_dtypes == []
