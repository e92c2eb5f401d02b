"""Fused BatchNorm, addition, ReLU and max-pool against torch. Without a GPU the kernels run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fused import DEVICE, DTYPES, KINDS, Inputs, errors, results
from torch import nn

from ddpbench.kernels import functions, ops, pool_ops
from ddpbench.kernels.functions import norm_add_relu, norm_relu, norm_relu_pool, twin

ODD, EVEN = (3, 37, 5, 7), (3, 20, 6, 8)


def shapes_of(kind: str) -> list[tuple[int, int, int, int]]:
    """A max-pool of odd sizes is torch's."""
    return [EVEN] if kind == "pool" else [ODD, EVEN]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_like_those_of_torch(kind: str, dtype: torch.dtype) -> None:
    check_errors(kind, shapes_of(kind)[-1], dtype, 0.0, seeds=2)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.0, 10.0, 100.0] if DEVICE == "cuda" else [100.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_like_those_of_torch_over_seeds_and_means(kind: str, dtype: torch.dtype, mean: float) -> None:
    check_errors(kind, shapes_of(kind)[0], dtype, mean, seeds=20)


def check_errors(kind: str, shape: tuple[int, int, int, int], dtype: torch.dtype, mean: float, seeds: int) -> None:
    found = [errors(Inputs.random(seed, shape, dtype, mean), KINDS[kind]) for seed in range(seeds)]
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
    spoilt = {"y": inputs.y, "other": inputs.other, "gradient": inputs.grads[0]}
    with torch.no_grad():
        if where == "weight":
            inputs.norms[0].weight[3] = value
        else:
            spoilt[where][1, 3, 2, 2] = value
    fused, plain = results(inputs, KINDS[kind].fused), results(inputs, KINDS[kind].torch)
    for name, expected in plain.items():
        assert torch.equal(fused[name].isfinite(), expected.isfinite()), name  # of infinity, torch makes another in CPU and GPU kernels
        assert value == float("inf") or torch.equal(fused[name].isnan(), expected.isnan()), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_in_a_fixed_order(kind: str) -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    first, second = results(inputs, KINDS[kind].fused), results(inputs, KINDS[kind].fused)
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


def nchw(inputs: Inputs) -> None:
    inputs.y.data = inputs.y.contiguous()
    inputs.other.data = inputs.other.contiguous()


@pytest.mark.parametrize("change", [eval_mode, frozen, without_parameters, without_momentum, without_running_statistics, nchw])
@pytest.mark.parametrize("kind", KINDS)
def test_torch_runs_what_the_kernels_cannot(kind: str, change: Callable[[Inputs], None], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    change(inputs)
    monkeypatch.setattr(functions, "batch_statistics", lambda *_: pytest.fail("a kernel ran"))
    fused, plain = results(inputs, KINDS[kind].fused), results(inputs, KINDS[kind].torch)
    assert all(torch.equal(fused[name], plain[name]) for name in plain)


def test_maps_of_different_shapes_are_added_by_torch() -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    other = inputs.other[:, :, :1]
    assert torch.equal(norm_add_relu(inputs.y, inputs.norms[0].eval(), other), torch.relu(inputs.norms[0](inputs.y) + other))
    assert norm_add_relu(inputs.y, inputs.norms[0].train(), other).shape == inputs.y.shape


def test_pool_of_odd_size_is_that_of_torch() -> None:
    inputs = Inputs.random(0, ODD, torch.float32)
    assert norm_relu_pool(inputs.y, inputs.norms[0]).shape[2:] == (3, 4)


def test_one_pixel_is_refused_as_in_torch() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm_relu(torch.randn(1, 4, 1, 1, device=DEVICE), nn.BatchNorm2d(4).to(DEVICE))


def test_only_a_sum_has_a_twin() -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    out = norm_add_relu(inputs.y, inputs.norms[0], inputs.other)
    assert twin(out) is not out
    assert torch.equal(twin(out), out)
    assert twin(inputs.other) is inputs.other


def test_result_that_is_not_differentiated_twice_has_one_gradient() -> None:
    inputs = Inputs.random(0, EVEN, torch.float32)
    for use_twin in (False, True):
        y = inputs.y.clone().requires_grad_()
        out = norm_add_relu(y, inputs.norms[0], inputs.other)
        (twin(out) if use_twin else out).backward(inputs.grads[0])
        expected = inputs.y.clone().requires_grad_()
        torch.relu(inputs.norms[0](expected) + inputs.other).backward(inputs.grads[0])
        assert y.grad is not None
        torch.testing.assert_close(y.grad, expected.grad)


def test_operators_are_registered_as_torch_expects() -> None:
    """Their fake kernels too, which torch.compile needs."""
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
        (ops.batch_norm_relu_backward, (inputs.grads[0], inputs.grads[1], y, *norm_args, positive, *other_args)),
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
    norm = nn.BatchNorm2d(64).to("cuda")
    out = norm_relu(y, norm)
    expected = torch.relu(nn.functional.batch_norm(y[-1:].float(), *exact_statistics(y), eps=norm.eps))
    torch.testing.assert_close(out[-1:].float(), expected, rtol=1e-2, atol=1e-2)


def exact_statistics(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each channel of ``y``, in which all images but the last are 0."""
    count, last = y.numel() / y.shape[1], y[-1].double()
    mean = last.sum((1, 2)) / count
    return mean.float(), (last.square().sum((1, 2)) / count - mean.square()).float()
