"""SGD in Triton kernels beside torch's, and the errors of both against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused import DEVICE
from torch import Tensor, nn

from ddpbench.kernels.sgd import BLOCK, SGD

SHAPES = ((1,), (10,), (3, 5), (16, 8, 3, 3), (BLOCK,), (2 * BLOCK + 7,))
"""Scalars and parts of a block, whole blocks, and a block and a part."""

OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 1e-2},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 1e-2},
]


def parameters(seed: int = 0) -> list[nn.Parameter]:
    """Of all SHAPES, four-dimensional ones in channels-last order."""
    torch.manual_seed(seed)
    made = [torch.randn(shape, device=DEVICE) for shape in SHAPES]
    return [nn.Parameter(each.to(memory_format=torch.channels_last) if each.dim() == 4 else each) for each in made]


def give_gradients(optimized: list[nn.Parameter], seed: int, scale: float = 1.0) -> None:
    """Random gradients, as views of one buffer that are aligned to 4 bytes only, like those of a bucket of DDP."""
    torch.manual_seed(seed)
    buffer = torch.randn(1 + sum(each.numel() for each in optimized), device=DEVICE).to(optimized[0].dtype) * scale
    offset = 1
    for parameter in optimized:
        parameter.grad = buffer[offset:].as_strided(parameter.shape, parameter.stride(), buffer.storage_offset() + offset)
        offset += parameter.numel()


def flat(tensors: list[nn.Parameter]) -> Tensor:
    return torch.cat([each.detach().double().flatten() for each in tensors])


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def trained(make: Callable[..., torch.optim.Optimizer], dtype: torch.dtype, steps: int = 4, **options: Any) -> Tensor:
    optimized = [nn.Parameter(each.detach().to(dtype)) for each in parameters()]
    optimizer = make(optimized, lr=0.1, **options)
    for step in range(steps):
        give_gradients(optimized, step + 1)
        optimizer.step()
    return flat(optimized)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_updates_are_as_exact_as_those_of_torch(options: dict[str, Any]) -> None:
    exact = trained(torch.optim.SGD, torch.float64, **options)
    errors = [(trained(make, torch.float32, **options) - exact).abs().max() for make in (SGD, torch.optim.SGD)]
    assert errors[0] <= 1.5 * errors[1]
    assert errors[1] < 1e-5


def test_each_group_has_its_own_rate_and_parameters_without_gradients_stay() -> None:
    ours, theirs = parameters(), parameters()
    for optimized, make in ((ours, SGD), (theirs, torch.optim.SGD)):
        optimizer = make([{"params": optimized[:2], "lr": 0.5}, {"params": optimized[2:]}], lr=0.1, momentum=0.9)
        for step in range(3):
            give_gradients(optimized, step)
            optimized[step].grad = None
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.5
    assert_same(flat(ours), flat(theirs))


def test_state_moves_to_and_from_the_optimizer_of_torch() -> None:
    ends = []
    for makes in ((SGD, torch.optim.SGD), (torch.optim.SGD, SGD), (torch.optim.SGD, torch.optim.SGD)):
        optimized, state = parameters(), None
        for number, make in enumerate(makes):
            optimizer = make(optimized, lr=0.1, momentum=0.9)
            if state is not None:
                optimizer.load_state_dict(copy.deepcopy(state))
            give_gradients(optimized, number)
            optimizer.step()
            state = optimizer.state_dict()
        ends.append(flat(optimized))
    assert_same(ends[0], ends[2])
    assert_same(ends[1], ends[2])


@pytest.mark.parametrize("unscale_first", [False, True])
def test_loss_scaler_unscales_gradients_and_skips_infinite_ones(unscale_first: bool) -> None:
    ours, theirs = parameters(), parameters()
    for optimized, make in ((ours, SGD), (theirs, torch.optim.SGD)):
        optimizer, scaler = make(optimized, lr=0.1, momentum=0.9), torch.amp.GradScaler(DEVICE, init_scale=1024.0)
        scaler.scale(torch.zeros((), device=DEVICE))
        for step in range(4):
            give_gradients(optimized, step, float(scaler.get_scale()))
            if step == 2:
                assert optimized[-1].grad is not None
                optimized[-1].grad[BLOCK + 1] = torch.inf
            if unscale_first:
                scaler.unscale_(optimizer)
            before = flat(optimized)
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(flat(optimized), before) == (step == 2)
        assert scaler.get_scale() == 512.0
    assert_same(flat(ours), flat(theirs))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("place", [(0, 0), (-1, 0), (-1, 2 * BLOCK + 6)])
def test_infinite_gradients_are_found(value: float, place: tuple[int, int]) -> None:
    optimized = parameters()
    optimizer = SGD(optimized, lr=0.1)
    give_gradients(optimized, 0)
    assert optimizer.find_infinite_gradients() == 0
    gradient = optimized[place[0]].grad
    assert gradient is not None
    gradient[place[1]] = value
    assert optimizer.find_infinite_gradients() == 1


@pytest.mark.parametrize(
    "made",
    [torch.zeros(4, dtype=torch.float16, device=DEVICE), torch.zeros(4, 4, device=DEVICE)[:, ::2], torch.zeros(5, device=DEVICE)[1:]],
)
def test_other_parameters_are_refused(made: Tensor) -> None:
    with pytest.raises(ValueError, match="needs dense float32 parameters"):
        SGD([nn.Parameter(made)])


@pytest.mark.parametrize("option", [{"maximize": True}, {"dampening": 0.5}, {"lr": torch.tensor(0.1)}], ids=str)
def test_other_options_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="knows no"):
        SGD([{"params": parameters(), **option}])
    trained = torch.optim.SGD([{"params": parameters(), **option}])
    with pytest.raises(ValueError, match="knows no"):
        SGD(parameters()).load_state_dict(trained.state_dict())


def test_copy_of_an_optimizer_updates_like_it() -> None:
    ends = []
    for copies in (False, True):
        optimized = parameters()
        optimizer = SGD(optimized, lr=0.1, momentum=0.9)
        for step in range(2):
            give_gradients(optimized, step)
            optimizer.step()
            if copies:
                optimizer = copy.deepcopy(optimizer)
                optimized = optimizer.param_groups[0]["params"]
        ends.append(flat(optimized))
    assert torch.equal(*ends)


def test_gradients_in_another_layout_are_refused() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3, device=DEVICE))
    parameter.grad = torch.zeros(3, 2, device=DEVICE).t()
    with pytest.raises(RuntimeError, match="with the strides of their parameters"):
        SGD([parameter]).step()


@pytest.mark.cuda
@pytest.mark.parametrize("keeps_addresses", [True, False])
def test_graph_updates_like_steps_without(keeps_addresses: bool) -> None:
    ends = []
    for captures in (False, True):
        optimized = parameters()
        optimizer = SGD(optimized, lr=0.1, momentum=0.9)
        give_gradients(optimized, 0)
        optimizer.step()
        if not keeps_addresses:
            give_gradients(optimized, 1)
        graph = torch.cuda.CUDAGraph()
        if captures:
            with torch.cuda.graph(graph):
                optimizer.step()
        for _ in range(3):
            graph.replay() if captures else optimizer.step()
        ends.append(flat(optimized))
    assert torch.equal(*ends)


@pytest.mark.cuda
@pytest.mark.parametrize("keeps_addresses", [True, False])
def test_graph_outlives_later_steps_without(keeps_addresses: bool) -> None:
    """Which replace the tables of the kernels."""
    optimized = parameters()
    optimizer = SGD(optimized, lr=0.1)
    give_gradients(optimized, 0)
    optimizer.step()
    if not keeps_addresses:
        give_gradients(optimized, 0)
    captured = [each.grad for each in optimized]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(2):
        give_gradients(optimized, 1)
        optimizer.step()
    reused = [torch.zeros(1 << 10, dtype=torch.int64, device=DEVICE) for _ in range(64)]
    before = flat(optimized)
    graph.replay()
    expected = before - 0.1 * torch.cat([each.double().flatten() for each in captured if each is not None])
    assert len(reused) == 64
    assert_same(flat(optimized), expected)


@pytest.mark.cuda
def test_step_between_capture_and_replay_reads_its_own_gradients() -> None:
    optimized = parameters()
    optimizer = SGD(optimized, lr=0.1)
    give_gradients(optimized, 0)
    optimizer.step()
    give_gradients(optimized, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    before = flat(optimized)
    for count in (1, 2):
        optimizer.step() if count == 1 else graph.replay()
        gradients = torch.cat([each.grad.double().flatten() for each in optimized if each.grad is not None])
        assert_same(flat(optimized), before - 0.1 * count * gradients)


@pytest.mark.cuda
def test_first_step_cannot_be_captured() -> None:
    optimized = parameters()
    give_gradients(optimized, 0)
    with pytest.raises(RuntimeError, match="needs a step"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        SGD(optimized).step()
