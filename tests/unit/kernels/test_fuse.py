"""Models with fused kernels: the same results, modules and parameters, and what is left out."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import sys
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
from torch.utils.checkpoint import checkpoint
from torchvision.models import regnet_y_400mf, resnet18, resnet50, vgg11_bn, wide_resnet50_2
from torchvision.ops import StochasticDepth

from ddpbench.kernels import deferred, functions, fuse
from ddpbench.kernels.deferred import FusedBatchNorm2d
from ddpbench.kernels.fusion import fuse_norms
from ddpbench.kernels.shortcut import ShortcutConv2d
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
    run = deferred.batch_statistics_of
    monkeypatch.setattr(deferred, "batch_statistics_of", lambda y, norm: (shapes.append(tuple(y.shape)), run(y, norm))[1])
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


def test_stochastic_depth_draws_in_each_step() -> None:
    class Dropping(Block):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.drop = StochasticDepth(0.5, "row")

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.bn1(self.drop(self.conv1(x))))

    model = fuse(Dropping().to(DEVICE, memory_format=torch.channels_last))
    x = images(batch=64)
    assert isinstance(model.bn1, FusedBatchNorm2d)
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
    assert fuse_norms(build(num_classes=4)) == {}


@pytest.mark.slow
def test_model_is_not_changed_without_triton(launch: Callable[..., Any]) -> None:
    done = launch([sys.executable, "-c", WITHOUT_TRITON], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "BatchNorm2d\n"
    assert done.stderr == "bn is not fused: Triton, which compiles the kernels, is not installed\n"


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
from residual_net import nn
from ddpbench.kernels import fuse
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(4)
    def forward(self, x):
        return self.bn(x).relu()
print(type(fuse(Small()).bn).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnext50_32x4d"])
def test_models_of_timm_are_fused(name: str) -> None:
    from timm import create_model

    model = create_model(name, num_classes=4)
    assert fuse_norms(model) == {}
    assert any(isinstance(each, ShortcutConv2d) for each in model.modules())


def test_norms_before_activation_are_fused() -> None:
    assert fuse_norms(wrn.build(10, 1, 32, 10)) == {}


# what is left out


class Simple(nn.Module):
    """A convolution and a BatchNorm. Subclasses have a ReLU after it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.saved = conv(3, 3), nn.BatchNorm2d(3), []
        self.register_buffer("calls", torch.zeros(()))

    def relu(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class ReadTwice(Simple):
    def forward(self, x: Tensor) -> Tensor:
        normalized = self.bn(self.conv(x))
        return functional.relu(normalized) + normalized


class AddsToItself(Simple):
    def forward(self, x: Tensor) -> Tensor:
        normalized = self.bn(self.conv(x))
        return functional.relu(normalized + normalized)


class DependsOnValues(Simple):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x) if x.sum() > 0 else x


class CountsCalls(Simple):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.relu(x)


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
    (CountsCalls, {"bn": "its forward method computes aten.add_.Tensor of tensors other than its inputs"}),
    (hooked, {"1": "it has hooks or a parametrization"}),
    (parametrized, {"1": "it has hooks or a parametrization"}),
    (synchronized, {"1": "it is a SyncBatchNorm"}),
]


def on_device(model: nn.Module) -> nn.Module:
    return model.to(DEVICE, memory_format=torch.channels_last)


@pytest.mark.parametrize(("build", "expected"), LEFT_OUT, ids=[build.__name__ for build, _ in LEFT_OUT])
def test_what_cannot_be_fused_is_logged(build: Callable[[], nn.Module], expected: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    model = on_device(build())
    plain = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING):
        fuse(model)
    assert caplog.messages == [f"{name} is not fused: {reason}" for name, reason in expected.items()]
    if build is not synchronized:  # it needs a process group
        assert_same_steps(model, plain, images())


# code that does more than call modules


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


# what changes afterwards


def test_hooks_that_are_added_later_see_the_same(net: Net) -> None:
    plain = copy.deepcopy(net)
    fuse(net)
    seen: list[list[Tensor]] = [[], []]
    for model, outputs in zip((net, plain), seen, strict=True):
        for module in (model.bn, model.blocks[1].bn2, model.blocks[1].relu):
            module.register_forward_hook(lambda _, __, out, outputs=outputs: outputs.append(out.clone()))
    assert_same_steps(net, plain, images())
    assert len(seen[0]) == len(seen[1]) == 4
    for ours, expected in zip(*seen, strict=True):
        torch.testing.assert_close(ours, expected)


def test_module_that_is_replaced_later_is_used(net: Net) -> None:
    plain = copy.deepcopy(net)
    fuse(net)
    for model in (net, plain):
        model.blocks[1].relu = nn.Sigmoid()
        model.blocks[0].downsample = nn.Conv2d(8, 8, 1).to(DEVICE)
        nn.init.ones_(model.blocks[0].downsample.weight)
        nn.init.zeros_(model.blocks[0].downsample.bias)
        model.pool.stride = 1
    assert_same_steps(net, plain, images())


def test_setting_that_is_changed_later_is_used(net: Net) -> None:
    fuse(net)
    net.blocks[2].dropout = 1.0
    assert torch.equal(net(images()), net.fc.bias.expand(4, -1))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copied", "pickled"])
def test_copy_is_fused_and_independent(duplicate: Callable[[Net], Net], net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    plain = copy.deepcopy(net)
    twin = duplicate(fuse(net))
    with torch.no_grad():
        net.bn.weight.zero_()
    assert_same_steps(twin, plain, images())
    assert kernel_runs


def test_fusing_twice_is_fusing_once(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    plain = copy.deepcopy(net)
    fuse(fuse(net))
    assert caplog.messages == []
    assert_same_steps(net, plain, images())


# with other parts of torch


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_have_the_same_gradients(reentrant: bool, net: Net) -> None:
    plain = copy.deepcopy(net)
    for model in (fuse(net), plain):
        first, *rest = model.blocks
        model.blocks.forward = lambda x, first=first, rest=rest: nn.Sequential(*rest)(checkpoint(first, x, use_reentrant=reentrant))
    first, second = step(net, images()), step(plain, images())
    for name in second:
        torch.testing.assert_close(first[name], second[name], rtol=2e-3, atol=2e-3)


def test_gradient_that_a_hook_sees_is_whole(net: Net) -> None:
    plain = copy.deepcopy(net)
    sums = []
    for model in (fuse(net), plain):
        model.blocks[0].register_forward_hook(lambda _, __, out: out.register_hook(lambda grad: sums.append(grad.abs().sum())) and None)
        step(model, images())
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-3, atol=1e-3)


def test_shortcut_whose_input_was_replaced_sees_the_new_values(net: Net) -> None:
    plain = copy.deepcopy(net)
    outs = []
    for model in (fuse(net), plain):
        first = model.blocks[0](model.pool(model.bn(model.conv(images())).relu()))
        first.data = first.data.clamp(max=0.5)
        outs.append(model.blocks[1](first))
    torch.testing.assert_close(*outs, rtol=1e-3, atol=1e-3)


def test_gradients_of_shortcuts_are_added_in_the_kernel_of_their_input(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shortcut with a convolution, too."""
    run, second_grads = functions.batch_norm_relu_backward, []
    monkeypatch.setattr(functions, "batch_norm_relu_backward", lambda *given: (second_grads.append(given[1]), run(*given))[1])
    step(fuse(net), images())
    assert isinstance(net.blocks[1].downsample[0], ShortcutConv2d)
    assert sum(each is not None for each in second_grads) == 2


def test_gradient_accumulation_adds_up(net: Net) -> None:
    plain = copy.deepcopy(net)
    for model in (fuse(net), plain):
        model(images()).sum().backward()
    assert_same_steps(net, plain, images())


def test_autocast_trains_like_the_plain_model(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    """On a CPU in bfloat16, which the interpreter truncates."""
    plain = copy.deepcopy(net)
    dtype = torch.float16 if DEVICE == "cuda" else torch.bfloat16
    steps = []
    for model in (fuse(net), plain):
        model.forward = torch.autocast(DEVICE, dtype)(model.forward)
        steps.append(step(model, images()))
    assert kernel_runs
    torch.testing.assert_close(steps[0]["out"], steps[1]["out"], rtol=0.1, atol=0.1)
    ours, expected = (torch.cat([value.flatten() for name, value in each.items() if "gradient" in name]) for each in steps)
    assert functional.cosine_similarity(ours, expected, 0) > 0.95


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy, in the interpreter
@pytest.mark.parametrize("scale", [2.0**10, 2.0**40], ids=["finite", "overflow"])
def test_scaled_gradients_are_those_of_the_plain_model(net: Net, scale: float) -> None:
    """And those that overflow are not finite: the scaler skips the update."""
    before, plain = copy.deepcopy(net.state_dict()), copy.deepcopy(net)
    for model in (fuse(net), plain):
        scaler = torch.amp.GradScaler(DEVICE, init_scale=scale)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with torch.autocast(DEVICE, torch.float16):
            loss = model(images()).square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (scale if scale < 2.0**16 else scale / 2)
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter, plain.get_parameter(name), rtol=0.01, atol=0.01)
        assert torch.equal(parameter, before[name]) == (scale > 2.0**16)


@pytest.mark.slow
def test_compiled_model_is_that_of_torch(net: Net, kernel_runs: list[tuple[int, ...]]) -> None:
    plain = copy.deepcopy(net)
    assert_same_steps(torch.compile(fuse(net), backend="aot_eager", fullgraph=True), torch.compile(plain, backend="aot_eager"), images())
    assert kernel_runs == []


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="its ranks run in Triton's interpreter, on CPUs")
def test_ranks_train_together_like_the_plain_model(launch: Callable[..., Any]) -> None:
    done = launch([*TORCHRUN[:-2], str(SUPPORT / "fused_losses.py")], env={**SUPPORT_ENV, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
    plain, fused, kernel_runs = json.loads(done.stdout)
    assert fused == pytest.approx(plain, rel=1e-3)
    assert kernel_runs == len(fused) * sum(isinstance(each, nn.BatchNorm2d) for each in Net().modules())
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
