"""FLOPs and bytes of operators, counted from shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ddpbench.training.operator_work import operator_bytes, operator_flops

N = 4 * 8 * 6 * 6
"""Elements of an activation below; float32, 4 bytes."""


class Operators(TorchDispatchMode):
    """The FLOPs and bytes of every operator that runs inside, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: list[tuple[float, float]] = []

    def __torch_dispatch__(self, operator: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        out = operator(*args, **(kwargs or {}))
        self.work.append((operator_flops(operator, args, kwargs or {}, out), operator_bytes(operator, args, kwargs or {}, out)))
        return out


def counted(run: Callable[[], object]) -> tuple[float, float]:
    with Operators() as operators:
        run()
    return sum(flops for flops, _ in operators.work), sum(num_bytes for _, num_bytes in operators.work)


def activation(**settings: Any) -> Tensor:
    return torch.randn(4, 8, 6, 6, **settings)


@pytest.mark.parametrize(
    ("run", "values"),
    [
        (lambda x: x + x.clone(), 5 * N),
        (lambda x: x.relu_(), 2 * N),
        (lambda x: x.add_(1), 2 * N),
        (lambda x: x.zero_(), N),
        (lambda x: x.to(torch.float16), 1.5 * N),
        (lambda x: x[:1].expand(4, 8, 6, 6).clone(), N + N / 4),
        (lambda x: torch.empty_like(x).copy_(x), 2 * N),
        (lambda x: torch.ones_like(x), N),
        (lambda x: torch.mul(x, 2, out=torch.empty_like(x)), 2 * N),
        (lambda x: torch._foreach_copy_([torch.empty_like(x)], [x]), 2 * N),
        (lambda x: torch._foreach_zero_([x]), N),
        (lambda x: torch._foreach_add_([x], 1.0), 2 * N),
        (lambda x: x[torch.tensor([0, 2])], 2 * N / 2 + 4),  # two of four images, and their positions, int64
        (lambda x: x.view(4, -1).t().reshape(-1)[3:].detach(), 2 * N),  # reshape copies
        (lambda x: x.view(4, -1).unsqueeze(0).transpose(0, 1), 0),
        (lambda x: torch.empty(4, 8), 0),
    ],
    ids=[
        "add",
        "relu_",
        "add_",
        "zero_",
        "cast",
        "expanded",
        "copy",
        "ones_like",
        "out",
        "foreach_copy_",
        "foreach_zero_",
        "foreach_add_",
        "index",
        "reshape",
        "views",
        "empty",
    ],
)
def test_elementwise_operators_read_and_write_each_element_once(run: Callable[[Tensor], object], values: float) -> None:
    x = activation()
    assert counted(lambda: run(x)) == (0, 4 * values)


def test_convolution_counts_flops_as_torch_does_and_reads_the_gradient_twice() -> None:
    x, conv = activation(requires_grad=True), nn.Conv2d(8, 16, 3, padding=1, bias=False)
    forward_flops, weight = 2 * 4 * 36 * 16 * 8 * 9, 16 * 8 * 9
    with Operators() as forward:
        out = conv(x)
    assert forward.work == [(forward_flops, 4 * (N + weight + 2 * N))]
    gradient = torch.ones_like(out)
    with Operators() as backward:
        torch.autograd.grad(out, (x, conv.weight), gradient)
    assert backward.work == [(2 * forward_flops, 4 * (2 * 2 * N + N + weight + N + weight))]


def test_convolution_without_input_gradient_reads_the_gradient_once() -> None:
    conv = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    out = conv(activation())
    weight, gradient = 16 * 8 * 9, torch.ones_like(out)
    flops, num_bytes = counted(lambda: torch.autograd.grad(out, conv.weight, gradient))
    assert (flops, num_bytes) == (2 * 4 * 36 * weight, 4 * (2 * N + N + weight + weight))  # the weight is an argument, too


def test_batch_norm_needs_its_input_twice() -> None:
    x, norm = activation(requires_grad=True), nn.BatchNorm2d(8)
    out = norm(x)
    gradient = torch.ones_like(out)
    _, forward = counted(lambda: norm(x))
    _, backward = counted(lambda: torch.autograd.grad(out, (x, norm.weight, norm.bias), gradient))
    assert forward == pytest.approx(4 * 3 * N, rel=0.1)
    assert backward == pytest.approx(4 * 5 * N, rel=0.1)


def test_backward_of_max_pool_does_not_read_its_input() -> None:
    x = activation(requires_grad=True)
    out = functional.max_pool2d(x, 2)
    gradient = torch.ones_like(out)
    assert counted(lambda: torch.autograd.grad(out, x, gradient)) == (0, 4 * (N / 4 + 2 * N / 4 + N))  # positions are int64


@pytest.mark.parametrize(("scale", "per_parameter"), [(None, 5), (2.0, 6)])
def test_fused_sgd_writes_gradients_only_to_unscale_them(scale: float | None, per_parameter: int) -> None:
    parameter, gradient, momentum = torch.ones(1000), torch.ones(1000), torch.ones(1000)
    settings = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
    grad_scale = None if scale is None else torch.tensor(scale)
    run = partial(torch._fused_sgd_, [parameter], [gradient], [momentum], is_first_step=False, grad_scale=grad_scale, **settings)
    assert counted(run)[1] == pytest.approx(4 * 1000 * per_parameter, rel=0.01)


def test_sparse_tensors_have_no_bytes() -> None:
    assert counted(lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (4,), check_invariants=True).coalesce())[1] < 100


def test_matrix_product_counts_two_flops_per_multiply_add() -> None:
    assert counted(lambda: torch.ones(3, 5) @ torch.ones(5, 7))[0] == 2 * 3 * 5 * 7
