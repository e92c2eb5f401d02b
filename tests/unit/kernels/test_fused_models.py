"""Models of a script that train with fused kernels for a while."""

from __future__ import annotations

import copy
from unittest.mock import patch

import pytest
import torch
from fused import DEVICE
from fused_models import assert_same_steps, images
from residual_net import Net
from torch import nn

from ddpbench.kernels import fusion
from ddpbench.kernels.deferred import FusedBatchNorm2d
from ddpbench.kernels.fusion import count_fusable_norms
from ddpbench.script.diagnose.fused_models import FusedModels


def kinds(model: nn.Module) -> list[type[nn.Module]]:
    return [type(each) for each in model.modules()]


def test_models_are_fused_while_a_window_lasts_and_plain_after_it(kernel_runs: list[tuple[int, ...]]) -> None:
    net = Net().to(DEVICE, memory_format=torch.channels_last)
    plain, twin = kinds(net), copy.deepcopy(net)
    models = FusedModels([net, nn.Linear(2, 2)], torch.device(DEVICE))
    assert kinds(net) == plain
    kernel_runs.clear()
    for _ in range(2):
        with models.fused():
            assert kinds(net).count(FusedBatchNorm2d) == count_fusable_norms(twin) > 0
            assert_same_steps(net, twin, images())
            assert kernel_runs
        assert kinds(net) == plain
        kernel_runs.clear()
        assert_same_steps(net, twin, images())
        assert not kernel_runs


def test_kernels_that_do_not_run_are_noticed_before_the_script_uses_them() -> None:
    net = Net().to(DEVICE, memory_format=torch.channels_last)
    plain = kinds(net)
    with (
        patch("ddpbench.kernels.deferred.norm_relu", side_effect=RuntimeError("no C compiler")),
        pytest.raises(RuntimeError, match="no C compiler"),
    ):
        FusedModels([net], torch.device(DEVICE))
    assert kinds(net) == plain


def test_norms_are_counted_without_a_change() -> None:
    net = Net()
    plain = kinds(net)
    assert count_fusable_norms(net) == sum(isinstance(each, nn.BatchNorm2d) for each in net.modules())
    assert kinds(net) == plain
    assert count_fusable_norms(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) == 0
    with patch.object(fusion, "HAS_TRITON", new=False):
        assert count_fusable_norms(net) == 0
