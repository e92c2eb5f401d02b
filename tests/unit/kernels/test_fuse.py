"""Models with fused kernels: the same results, modules and parameters, and what is left out."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused import DEVICE
from fused_models import Simple, assert_same_steps, images, on_device
from launches import SUPPORT_ENV
from residual_net import Block, Net, conv
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torchvision.models import regnet_y_400mf, resnet18, resnet50, vgg11_bn, wide_resnet50_2
from torchvision.ops import StochasticDepth

from ddpbench.kernels import deferred, fuse
from ddpbench.kernels.deferred import FusedBatchNorm2d
from ddpbench.kernels.fusion import fuse_norms
from ddpbench.kernels.modules import ShortcutConv2d
from ddpbench.workloads import wrn

NO_RELU = "no ReLU follows, or something else uses its output"


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
    assert done.stderr == "BatchNorm not fused (Triton, which compiles the kernels, is not installed): bn\n"


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


class Unpicklable(Net):
    """Cannot be copied, as some wrappers cannot."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle")


def test_model_that_cannot_be_copied_is_fused() -> None:
    assert fuse_norms(Unpicklable()) == {}


def test_norms_before_activation_are_fused() -> None:
    assert fuse_norms(wrn.build(10, 1, 32, 10)) == {}


class ReadTwice(Simple):
    def forward(self, x: Tensor) -> Tensor:
        normalized = self.bn(self.conv(x))
        return functional.relu(normalized) + normalized


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


@pytest.mark.parametrize(("build", "expected"), LEFT_OUT, ids=[build.__name__ for build, _ in LEFT_OUT])
def test_what_cannot_be_fused_is_logged(build: Callable[[], nn.Module], expected: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    model = on_device(build())
    plain = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING):
        fuse(model)
    assert caplog.messages == [f"BatchNorm not fused ({reason}): {name}" for name, reason in expected.items()]
    if build is not synchronized:  # it needs a process group
        assert_same_steps(model, plain, images())


def test_batch_norms_left_out_for_the_same_reason_share_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    fuse(nn.Sequential(conv(3, 3), nn.BatchNorm2d(3), nn.ReLU6(), conv(3, 3), nn.BatchNorm2d(3)))
    assert caplog.messages == [f"BatchNorm not fused ({NO_RELU}): 1, 4"]


def test_training_in_channels_first_order_is_warned_of_once(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    deferred._warn_of_channels_first.cache_clear()
    fuse(net).to(memory_format=torch.contiguous_format)
    for _ in range(2):
        net(images().contiguous())
    assert caplog.messages == ["fused kernels do not run on maps in channels-first order: use model.to(memory_format=torch.channels_last)"]
