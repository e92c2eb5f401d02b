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
from torch.utils.data import DataLoader, TensorDataset

from ddpbench.kernels import fusion
from ddpbench.kernels.deferred import FusedBatchNorm2d
from ddpbench.kernels.fusion import count_fusable_norms
from ddpbench.machine.rank_env import from_env
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.prediction import FUSED
from ddpbench.record.roles import BASELINE, trial_role
from ddpbench.script.diagnose.fused_models import fused
from ddpbench.script.diagnose.stage import FIRST_BATCH, Stage
from ddpbench.script.diagnose.windows import Windows
from ddpbench.script.observe.hooks import hooked
from ddpbench.script.observe.observer import Observer


def kinds(model: nn.Module) -> list[type[nn.Module]]:
    return [type(each) for each in model.modules()]


def test_models_are_fused_for_a_while_and_as_before_after_it(kernel_runs: list[tuple[int, ...]]) -> None:
    net = Net().to(DEVICE, memory_format=torch.channels_last)
    plain, twin = kinds(net), copy.deepcopy(net)
    state = {name: set(vars(each)) for name, each in net.named_modules()}
    with fused([net, nn.Linear(2, 2)], torch.device(DEVICE)):
        assert kinds(net).count(FusedBatchNorm2d) == count_fusable_norms(twin) > 0
        kernel_runs.clear()
        assert_same_steps(net, twin, images())
        assert kernel_runs
    assert kinds(net) == plain
    assert {name: set(vars(each)) for name, each in net.named_modules()} == state
    kernel_runs.clear()
    assert_same_steps(net, twin, images())
    assert not kernel_runs


def test_kernels_that_do_not_run_are_noticed_before_the_script_uses_them() -> None:
    net = Net().to(DEVICE, memory_format=torch.channels_last)
    plain = kinds(net)
    with (
        patch("ddpbench.kernels.deferred.norm_relu", side_effect=RuntimeError("no C compiler")),
        pytest.raises(RuntimeError, match="no C compiler"),
        fused([net], torch.device(DEVICE)),
    ):
        pytest.fail("the script would use them")
    assert kinds(net) == plain


def test_models_without_a_norm_to_fuse_are_an_error() -> None:
    with pytest.raises(ConfigFailed, match="no BatchNorm to fuse"), fused([nn.Linear(2, 2)], torch.device(DEVICE)):
        pytest.fail("nothing is tried")


def test_trial_in_a_running_script_ends_with_its_window() -> None:
    net, seen = Net().to(DEVICE, memory_format=torch.channels_last), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    stages = iter([(FUSED, 4), (None, 4), (FUSED, 4)])

    def next_stage(number: int) -> Stage:
        scenario, batches = next(stages, (None, 2**20))
        role = trial_role(scenario) if scenario else BASELINE
        return Stage(kind="window", first=number, batches=batches, source="own", role=role)

    windows = Windows(from_env({}), lambda: None, next_stage, lambda: None, lambda problem: pytest.fail(problem.message))
    windows.models = lambda: [net]
    windows.observer = observer = Observer(steering=windows)
    with hooked(observer):
        for (x,) in DataLoader(TensorDataset(torch.randn(100, 3, 8, 8)), 4):
            seen.append(FusedBatchNorm2d in kinds(net))
            net(x.to(DEVICE, memory_format=torch.channels_last)).sum().backward()
            optimizer.step()
    windows.close()
    assert (windows.results.failed_trials, observer.problem) == ([], "")
    changes = [(number, is_fused) for number, is_fused in enumerate(seen) if number and is_fused != seen[number - 1]]
    assert changes == [(FIRST_BATCH, True), (FIRST_BATCH + 4, False), (FIRST_BATCH + 8, True), (FIRST_BATCH + 12, False)]


def test_norms_are_counted_without_a_change() -> None:
    net = Net()
    plain = kinds(net)
    assert count_fusable_norms(net) == sum(isinstance(each, nn.BatchNorm2d) for each in net.modules())
    assert kinds(net) == plain
    assert count_fusable_norms(net.requires_grad_(False)) == count_fusable_norms(Net().eval()) == 0
    assert count_fusable_norms(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) == 0
    with patch.object(fusion, "HAS_TRITON", new=False):
        assert count_fusable_norms(Net()) == 0
