"""Models with fused kernels: the same results, modules and parameters, and what is left out."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused import DEVICE, channels_last
from launches import SUPPORT, SUPPORT_ENV, TORCHRUN
from residual_net import Block, Net, conv
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torchvision.models import regnet_y_400mf, resnet18, resnet50, vgg11_bn, wide_resnet50_2
from torchvision.ops import StochasticDepth

from ddpbench.kernels import functions, fuse
from ddpbench.kernels.fusion import FusedForward, fuse_modules
from ddpbench.workloads import wrn

NO_RELU = "no ReLU follows, or something else uses its output"


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().to(DEVICE, memory_format=torch.channels_last)


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


@pytest.fixture
def kernel_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the feature maps that kernels have normalized."""
    shapes: list[tuple[int, ...]] = []
    run = functions.batch_statistics
    monkeypatch.setattr(functions, "batch_statistics", lambda y, *rest: (shapes.append(tuple(y.shape)), run(y, *rest))[1])
    return shapes


def test_fused_model_trains_like_the_plain_one(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    plain, keys = copy.deepcopy(net), [*net.state_dict()]
    fused = fuse(net)
    assert fused is net
    assert type(fused) is Net
    assert [*fused.state_dict()] == keys
    assert_same_steps(fused, plain, images())
    assert len(kernel_runs) == sum(isinstance(each, nn.BatchNorm2d) for each in net.modules())


def test_fused_model_evaluates_as_before(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    plain = copy.deepcopy(net).eval()
    assert torch.equal(fuse(net).eval()(images()), plain(images()))
    assert kernel_runs == []


def test_mode_after_fusing_decides_about_dropout(net: Net) -> None:
    for block in net.blocks:
        block.dropout = 1.0
    fuse(net.eval())
    assert not torch.equal(net(images()), net.fc.bias.expand(4, -1))
    assert torch.equal(net.train()(images()), net.fc.bias.expand(4, -1))
    assert not torch.equal(net.eval()(images()), net.fc.bias.expand(4, -1))


def test_stochastic_depth_draws_anew_in_each_step() -> None:
    class Dropping(Block):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.drop = StochasticDepth(0.5, "row")

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.bn1(self.drop(self.conv1(x))))

    model = fuse(Dropping().to(DEVICE, memory_format=torch.channels_last))
    x = images(batch=64)
    assert isinstance(model.forward, FusedForward)
    assert not torch.equal(model(x), model(x))


def test_frozen_norm_runs_as_in_torch(net: Net) -> None:
    plain = copy.deepcopy(net)
    for model in (fuse(net), plain):
        model.blocks[1].bn1.eval()
        model.blocks[2].requires_grad_(False)
    assert_same_steps(net, plain, images())


@pytest.mark.parametrize(
    "build",
    [
        resnet18,
        pytest.param(resnet50, marks=pytest.mark.slow),
        pytest.param(wide_resnet50_2, marks=pytest.mark.slow),
        pytest.param(regnet_y_400mf, marks=pytest.mark.slow),
        vgg11_bn,
    ],
)
def test_models_of_torchvision_are_fused(build: Callable[..., nn.Module]) -> None:
    assert fuse_modules(build(num_classes=4)) == {}


def test_norms_before_activation_are_fused() -> None:
    assert fuse_modules(wrn.build(10, 1, 32, 10)) == {}


# what is left out


class SharedNorm(nn.Module):
    """Two convolutions with one BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bn = conv(3, 3), conv(3, 3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.second(functional.relu(self.bn(self.first(x))))))


class ReadTwice(nn.Module):
    """Returns what its BatchNorm makes, and the ReLU of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = conv(3, 3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        normalized = self.bn(self.conv(x))
        return functional.relu(normalized) + normalized


class DependsOnValues(ReadTwice):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x))) if x.sum() > 0 else x


class DrawsNumbers(ReadTwice):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x))) * torch.rand(1).item()


class CreatesTensors(ReadTwice):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x))) + torch.ones(1, device=DEVICE)


class SetsAttribute(ReadTwice):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return functional.relu(self.bn(self.conv(x)))


class AddsToItself(ReadTwice):
    def forward(self, x: Tensor) -> Tensor:
        normalized = self.bn(self.conv(x))
        return functional.relu(normalized + normalized)


def hooked() -> nn.Module:
    model = nn.Sequential(conv(3, 3), nn.BatchNorm2d(3), nn.ReLU())
    model[1].register_forward_hook(lambda *_: None)
    return model


def parametrized() -> nn.Module:
    model = nn.Sequential(conv(3, 3), nn.BatchNorm2d(3), nn.ReLU())
    parametrizations.weight_norm(model[1], "weight", dim=None)
    return model


def synchronized() -> nn.Module:
    return nn.Sequential(conv(3, 3), nn.SyncBatchNorm(3), nn.ReLU())


LEFT_OUT = [
    (ReadTwice, {"bn": NO_RELU}),
    (DependsOnValues, {"bn": "torch.fx cannot trace it: symbolically traced variables cannot be used as inputs to control flow"}),
    (DrawsNumbers, {"bn": "its forward method draws random numbers"}),
    (CreatesTensors, {"bn": "its forward method creates tensors"}),
    (SetsAttribute, {"bn": "its forward method sets calls"}),
    (AddsToItself, {"bn": NO_RELU}),
    (hooked, {"1": "it has hooks or a parametrization"}),
    (parametrized, {"1": "it has hooks or a parametrization"}),
    (synchronized, {"1": "it is a SyncBatchNorm"}),
]


@pytest.mark.parametrize(("build", "expected"), LEFT_OUT, ids=[build.__name__ for build, _ in LEFT_OUT])
def test_what_cannot_be_fused_is_logged(build: Callable[[], nn.Module], expected: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    model = build().to(DEVICE, memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING):
        fuse(model)
    assert caplog.messages == [f"{name} is not fused: {reason}" for name, reason in expected.items()]
    if build is not synchronized:  # it needs a process group
        assert_same_steps(model, plain, images())


def test_norm_of_two_places_is_fused_in_both(kernel_runs: list[tuple[int, ...]]) -> None:
    model = SharedNorm().to(DEVICE, memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    assert_same_steps(fuse(model), plain, images())
    assert len(kernel_runs) == 2


# what changes afterwards


def test_hook_that_is_added_later_is_called(net: Net) -> None:
    fuse(net)
    seen = []
    net.blocks[0].relu.register_forward_hook(lambda *_: seen.append(1))
    net(images())
    assert seen == [1, 1]


def test_module_that_is_replaced_later_is_used(net: Net) -> None:
    plain = copy.deepcopy(net)
    fuse(net)
    for model in (net, plain):
        model.blocks[1].relu = nn.Sigmoid()
    assert_same_steps(net, plain, images())


def test_setting_that_is_changed_later_is_used(net: Net) -> None:
    fuse(net)
    net.blocks[2].dropout = 1.0
    assert torch.equal(net(images()), net.fc.bias.expand(4, -1))


def test_copy_is_fused_and_independent(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    twin = copy.deepcopy(fuse(net))
    plain = copy.deepcopy(twin)
    with torch.no_grad():
        net.bn.weight.zero_()
    assert_same_steps(twin, plain, images())
    assert kernel_runs


def test_pickled_model_is_plain(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    loaded = pickle.loads(pickle.dumps(fuse(net)))
    loaded(images())
    assert kernel_runs == []
    assert [*loaded.state_dict()] == [*net.state_dict()]


def test_fusing_twice_is_fusing_once(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    plain = copy.deepcopy(net)
    fuse(fuse(net))
    assert caplog.messages == []
    assert_same_steps(net, plain, images())


# with other parts of torch


def test_gradient_accumulation_adds_up(net: Net) -> None:
    plain = copy.deepcopy(net)
    for model in (fuse(net), plain):
        model(images()).sum().backward()
    assert_same_steps(net, plain, images())


def test_autocast_trains_like_the_plain_model(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    """On a CPU in bfloat16, which the interpreter truncates."""
    plain = copy.deepcopy(net)
    with torch.autocast(DEVICE, torch.float16 if DEVICE == "cuda" else torch.bfloat16):
        fused, expected = fuse(net)(images()), plain(images())
    assert kernel_runs
    torch.testing.assert_close(fused, expected, rtol=0.1, atol=0.1)


@pytest.mark.slow
def test_compiled_model_trains_like_the_plain_one(net: Net) -> None:
    """Around the kernels, which torch.compile calls as they are."""
    plain = copy.deepcopy(net)
    fuse(net)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=False)
    torch.testing.assert_close(compiled(images()), plain(images()), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_ranks_train_together_like_the_plain_model(launch: Callable[..., Any]) -> None:
    done = launch([*TORCHRUN[:-2], str(SUPPORT / "fused_losses.py")], env={**SUPPORT_ENV, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
    plain, fused = json.loads(done.stdout)
    assert fused == pytest.approx(plain, rel=1e-3)
    assert plain[-1] < plain[0]


@pytest.mark.cuda
def test_training_ends_where_the_plain_one_does(net: Net) -> None:
    """200 steps on classes that the mean colour decides."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (200, 8), generator=generator)
    pixels = torch.randn(200, 8, 3, 8, 8, generator=generator) + torch.randn(4, 3, generator=generator)[labels][..., None, None]
    accuracies = []
    for model in (copy.deepcopy(net), fuse(net)):
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        right = 0
        for number, (x, y) in enumerate(zip(pixels.to(DEVICE), labels.to(DEVICE), strict=True)):
            out = model(channels_last(x))
            optimizer.zero_grad()
            functional.cross_entropy(out, y).backward()
            optimizer.step()
            right += int((out.argmax(1) == y).sum()) if number >= 150 else 0
        accuracies.append(right / 400)
    assert accuracies[0] > 0.8
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.05)
