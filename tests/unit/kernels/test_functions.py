"""Fused BatchNorm, addition, ReLU and max-pool against torch. Without a GPU the kernels run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fused import DEVICE, DTYPES, KINDS, Inputs, errors, fused, results
from torch import nn
from torch.nn import functional

from ddpbench.kernels import deferred, functions, ops, pool_ops, tiles
from ddpbench.kernels.functions import can_fuse
from ddpbench.kernels.tiles import Tiles

ODD, EVEN = (3, 37, 5, 7), (3, 20, 6, 8)


def shapes_of(kind: str) -> list[tuple[int, int, int, int]]:
    """A max-pool of odd sizes is torch's."""
    return [EVEN] if kind == "pool" else [ODD, EVEN]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_like_those_of_torch(kind: str, dtype: torch.dtype) -> None:
    check_errors(kind, shapes_of(kind)[-1], dtype, 0.0, seeds=20 if DEVICE == "cuda" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.0, 10.0, 100.0] if DEVICE == "cuda" else [100.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_like_those_of_torch_over_seeds_and_means(kind: str, dtype: torch.dtype, mean: float) -> None:
    check_errors(kind, shapes_of(kind)[0], dtype, mean, seeds=20)


def check_errors(kind: str, shape: tuple[int, int, int, int], dtype: torch.dtype, mean: float, seeds: int) -> None:
    found = [errors(Inputs.random(seed, shape, dtype, mean), kind) for seed in range(seeds)]
    for name in found[0]:
        error, torch_error, rounding = (max(each[name][k] for each in found) for k in range(3))
        allowed = rounding if "running" in name else 0.0  # on a CPU torch sums these in float64
        assert error <= 1.5 * torch_error + allowed, f"{name}: {error:.1e}, torch {torch_error:.1e}"


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy, in the interpreter
@pytest.mark.parametrize("where", ["y", "other", "weight", "gradient"])
@pytest.mark.parametrize("value", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinity_come_out_where_they_do_in_torch(kind: str, value: float, where: str) -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    spoilt = {"y": inputs.y, "other": inputs.other, "gradient": inputs.grad}
    with torch.no_grad():
        if where == "weight":
            inputs.norms[0].weight[3] = value
        else:
            spoilt[where][1, 3, 2, 2] = value
    ours, plain = results(inputs, kind, is_fused=True), results(inputs, kind)
    for name, expected in plain.items():
        assert torch.equal(ours[name].isfinite(), expected.isfinite()), name  # of infinity, torch makes another in CPU and GPU kernels
        assert value == float("inf") or torch.equal(ours[name].isnan(), expected.isnan()), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_in_a_fixed_order(kind: str) -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    first, second = (results(inputs, kind, is_fused=True) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def eval_mode(inputs: Inputs) -> None:
    for norm in inputs.norms:
        norm.eval()


def frozen(inputs: Inputs) -> None:
    inputs.norms[0].weight.requires_grad_(False)


def without_parameters(inputs: Inputs) -> None:
    inputs.norms[0].weight = inputs.norms[0].bias = None


def without_momentum(inputs: Inputs) -> None:
    inputs.norms[0].momentum = None


def without_running_statistics(inputs: Inputs) -> None:
    inputs.norms[0].running_mean = inputs.norms[0].running_var = inputs.norms[0].num_batches_tracked = None


def without_tracking(inputs: Inputs) -> None:
    inputs.norms[0].track_running_stats = False


def without_counter(inputs: Inputs) -> None:
    inputs.norms[0].num_batches_tracked = None


def nchw(inputs: Inputs) -> None:
    inputs.y.data = inputs.y.contiguous()
    inputs.other.data = inputs.other.contiguous()


@pytest.mark.parametrize(
    "change",
    [
        eval_mode,
        frozen,
        without_parameters,
        without_momentum,
        without_running_statistics,
        without_tracking,
        without_counter,
        nchw,
    ],
)
@pytest.mark.parametrize("kind", ["relu", "add", "pool"])
def test_torch_runs_what_the_kernels_cannot(kind: str, change: Callable[[Inputs], None], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    change(inputs)
    monkeypatch.setattr(deferred, "batch_statistics_of", lambda *_: pytest.fail("a kernel ran"))
    ours, plain = results(inputs, kind, is_fused=True), results(inputs, kind)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_both_gradients_of_a_sum_are_added_in_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    run, second_grads = functions.batch_norm_relu_backward, []
    monkeypatch.setattr(functions, "batch_norm_relu_backward", lambda *given: (second_grads.append(given[1]), run(*given))[1])
    results(Inputs.random(0, EVEN, torch.float32), "add-twice", is_fused=True)
    assert [each is not None for each in second_grads] == [False, True]


def test_kernels_need_contiguous_parameters() -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    norm = inputs.norms[0]
    assert can_fuse(inputs.y, norm)
    norm.weight = nn.Parameter(torch.stack((norm.weight, norm.weight), 1).detach()[:, 0])
    assert not can_fuse(inputs.y, norm)


def test_wrong_number_of_channels_is_refused_as_in_torch() -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    with pytest.raises(RuntimeError, match="running_mean should contain"):
        fused(inputs.norms)[0](inputs.y[:, :8].contiguous(memory_format=torch.channels_last))


def test_one_pixel_is_refused_as_in_torch() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        fused((nn.BatchNorm2d(4).to(DEVICE),) * 2)[0](torch.randn(1, 4, 1, 1, device=DEVICE))


def test_operators_are_registered_as_torch_expects() -> None:
    """Their fake kernels, too, for tensors without values."""
    inputs = Inputs.random(0, EVEN, torch.float32)
    y, other, (norm, other_norm) = inputs.y, inputs.other, inputs.norms
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    stats = ops.batch_statistics(y, *running, 0.1, 1e-5)
    norm_args, other_args = (stats, norm.weight.detach(), norm.bias.detach()), (other, stats, other_norm.weight.detach())
    out, positive = ops.batch_norm_relu(y, *norm_args, *other_args, other_norm.bias.detach())
    pooled, position = pool_ops.batch_norm_relu_pool(y, *norm_args)
    calls = [
        (ops.batch_statistics, (y, *running, 0.1, 1e-5)),
        (ops.batch_norm_relu, (y, *norm_args, *other_args, other_norm.bias.detach())),
        (ops.batch_norm_relu, (y, *norm_args, None, None, None, None)),
        (ops.batch_norm_relu_backward, (inputs.grad, None, y, *norm_args, positive[:0], None, None, None)),
        (ops.batch_norm_relu_backward, (inputs.grad, inputs.other, y, *norm_args, positive, *other_args)),
        (pool_ops.batch_norm_relu_pool, (y, *norm_args)),
        (pool_ops.batch_norm_relu_pool_backward, (torch.ones_like(pooled), position, y, *norm_args[:2])),
    ]
    for operator, arguments in calls:
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    assert out.shape == y.shape


@pytest.mark.cuda
def test_more_elements_than_32_bits_count() -> None:
    y = torch.zeros(66_000, 64, 23, 23, dtype=torch.float16, device="cuda").contiguous(memory_format=torch.channels_last)
    assert y.numel() > 2**31
    y[-1] = torch.randn(64, 23, 23)
    grad = torch.zeros_like(y)
    grad[-1] = torch.randn(64, 23, 23)
    norm = nn.BatchNorm2d(64).to("cuda")
    out = functional.relu(fused((norm, norm))[0](y.requires_grad_()))
    out.backward(grad)
    assert y.grad is not None
    y, y_grad = y.detach(), y.grad
    mean, var = (each.double()[:, None, None] for each in exact_statistics(y))
    scale = (var + norm.eps).rsqrt()
    normalized = (y[-1].double() - mean) * scale
    torch.testing.assert_close(out[-1].double(), normalized.clamp(min=0), rtol=1e-2, atol=1e-2)
    passed = grad[-1].double() * (normalized > 0)  # where y is 0, its gradient is, too
    means = (each.sum((1, 2), keepdim=True) * y.shape[1] / y.numel() for each in (passed, passed * normalized))
    torch.testing.assert_close(
        y_grad[-1].double(), scale * (passed - next(means) - normalized * next(means)), rtol=1e-2, atol=2e-2 * float(scale.max())
    )


def exact_statistics(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each channel of ``y``, in which all images but the last are 0."""
    count, last = y.numel() / y.shape[1], y[-1].double()
    mean = last.sum((1, 2)) / count
    return mean.float(), (last.square().sum((1, 2)) / count - mean.square()).float()


@pytest.mark.parametrize(
    ("shared_kib", "dtype", "inputs", "stages"),
    [
        (228, torch.float16, 4, 4),
        (228, torch.float32, 4, 1),
        (164, torch.float16, 4, 3),
        (100, torch.float16, 2, 4),
        (64, torch.float16, 2, 1),
    ],
)
def test_tiles_are_loaded_ahead_as_shared_memory_allows(
    shared_kib: int, dtype: torch.dtype, inputs: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "_shared_bytes", lambda _: shared_kib * 1024 - 2048)
    tile = Tiles(10_000, 128, 32, 128)
    assert tile.stages(torch.empty(0, dtype=dtype), inputs) == stages
