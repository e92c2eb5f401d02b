"""Models of a script that train with fused kernels for a while, and the time of their layers."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fused import DEVICE
from fused_models import assert_same_steps, images
from msgspec.structs import replace
from residual_net import Net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddpbench.kernels import fusion
from ddpbench.kernels.deferred import FusedBatchNorm2d
from ddpbench.kernels.fusion import count_fusable_norms
from ddpbench.machine.rank_env import from_env
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.roles import BASELINE, Role
from ddpbench.script.cures.catalog import CURES
from ddpbench.script.cures.cure import Training
from ddpbench.script.diagnose.model_layers import ModelLayers
from ddpbench.script.diagnose.stage import FIRST_BATCH, Stage
from ddpbench.script.diagnose.windows import Windows
from ddpbench.script.observe.hooks import hooked
from ddpbench.script.observe.observer import Observer
from ddpbench.script.ranks.observation import Observation


def kinds(model: nn.Module) -> list[type[nn.Module]]:
    return [type(each) for each in model.modules()]


def switched_on(*models: nn.Module) -> AbstractContextManager[None]:
    return CURES["fused-kernels"].switched_on(Training(models=models, optimizers=[], device=torch.device(DEVICE)))


def test_models_are_fused_for_a_while_and_as_before_after_it(kernel_runs: list[tuple[int, ...]]) -> None:
    net = Net().to(DEVICE, memory_format=torch.channels_last)
    plain, twin = kinds(net), copy.deepcopy(net)
    state = {name: set(vars(each)) for name, each in net.named_modules()}
    with switched_on(net, nn.Linear(2, 2)):
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
        switched_on(net),
    ):
        pytest.fail("the script would use them")
    assert kinds(net) == plain


class Script:
    """A training on images that goes through ``stages``, in this process; ``seen`` says for each batch whether the model was fused."""

    def __init__(self, *stages: Stage, calls: int = 1, validates: bool = False) -> None:
        torch.manual_seed(0)
        self._calls, self._validates = calls, validates
        self.net, self.seen = Net().to(DEVICE, memory_format=torch.channels_last), list[bool]()
        self._stages = iter(stages)
        self.windows = Windows(from_env({}), lambda: None, self._next_stage, lambda: None, lambda problem: pytest.fail(problem.message))
        self._train()
        self.windows.close()

    def _next_stage(self, number: int) -> Stage:
        return replace(next(self._stages, Stage(kind="window", first=0, batches=2**20, role=BASELINE)), first=number)

    def _train(self) -> None:
        observer = Observer(steering=self.windows)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        with hooked(observer) as hooks:
            self.windows.observation = Observation("train.py", from_env({}), observer, hooks)
            for (x,) in DataLoader(TensorDataset(torch.randn(100, 3, 8, 8)), 4):
                self.seen.append(FusedBatchNorm2d in kinds(self.net))
                x = x.to(DEVICE, memory_format=torch.channels_last)
                sum(self.net(x).sum() for _ in range(self._calls)).backward()
                optimizer.step()
                if self._validates:
                    with torch.no_grad():
                        self.net(x)
        assert observer.problem == ""


def window(role: Role, batches: int, **how: Any) -> Stage:
    return Stage(kind="window", first=0, batches=batches, role=role, **how)


def test_window_of_a_running_script_is_fused_and_the_next_one_is_not() -> None:
    script = Script(*(window(BASELINE, 4, cures=each) for each in (["fused-kernels"], [], ["fused-kernels"])))
    assert script.windows.results.failed_cures == []
    changes = [(number, is_fused) for number, is_fused in enumerate(script.seen) if number and is_fused != script.seen[number - 1]]
    assert changes == [(FIRST_BATCH, True), (FIRST_BATCH + 4, False), (FIRST_BATCH + 8, True), (FIRST_BATCH + 12, False)]


TIMED = {"is_profiled": True, "times_layers": True}


def test_layers_of_the_model_are_timed_per_batch() -> None:
    script = Script(window(BASELINE, 5, **TIMED))
    script.windows.finish_roofline()
    found = script.windows.results.roofline
    assert found is not None
    assert {layer.name for layer in found.layers} >= {"conv", "bn", "blocks.1.bn2", "fc"}
    convolution = next(layer.forward for layer in found.layers if layer.name == "conv")
    assert convolution.flops == 2 * 4 * 8 * 8 * 8 * 3 * 9, "of a batch"
    assert all(each.forward.ms > 0 for each in found.layers if each.kind == "Conv2d")


def test_layers_of_a_compiled_model_are_left_alone() -> None:
    """Hooks on its layers raise an error in a graph that must not break."""
    script = Script()
    script.net.compile(backend="eager", fullgraph=True)
    with pytest.raises(ConfigFailed, match="compiled"):
        ModelLayers.of(script.windows.observation, 5)


@pytest.mark.parametrize(
    ("batches", "how", "message"),
    [
        (5, {"calls": 2}, "5 batches, but 10 calls of the model and 0 in validation"),
        (5, {"validates": True}, "5 batches, but 5 calls of the model and 5 in validation"),
        (50, {}, "50 batches, but 15 calls"),
    ],
)
def test_layers_are_not_counted_if_a_batch_is_no_single_call(batches: int, how: dict[str, Any], message: str) -> None:
    script = Script(window(BASELINE, batches, **TIMED), **how)
    with pytest.raises(ConfigFailed, match=message):
        script.windows.finish_roofline()


def test_norms_are_counted_without_a_change() -> None:
    net = Net()
    plain = kinds(net)
    assert count_fusable_norms(net) == sum(isinstance(each, nn.BatchNorm2d) for each in net.modules())
    assert kinds(net) == plain
    assert count_fusable_norms(net.requires_grad_(False)) == count_fusable_norms(Net().eval()) == 0
    assert count_fusable_norms(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) == 0
    with patch.object(fusion, "HAS_TRITON", new=False):
        assert count_fusable_norms(Net()) == 0
