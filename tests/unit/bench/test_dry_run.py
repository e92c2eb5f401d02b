"""The dry run of a rank allocates the memory of a real step."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn
from training import CLASSES, config, tiny_net, world_of_one

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.dry_run import dry_run_memory
from ddpbench.machine.backends import get_tf32
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.errors import ConfigFailed
from ddpbench.training.warmup import first_step_timeout_s
from ddpbench.workloads.registry import find_workload


class Switches(nn.Module):
    """A loss that records the TF32 and cuDNN benchmark settings."""

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.seen = (get_tf32(), torch.backends.cudnn.benchmark)
        return nn.functional.cross_entropy(scores, labels)


class Looking(nn.Module):
    """A loss that records the size of the existing optimizer state."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = 0

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizers = [each for each in gc.get_objects() if type(each) in (torch.optim.SGD, torch.optim.Adam)]
        states = [value for each in optimizers for state in each.state.values() for value in state.values()]
        self.kept = sum(state.numel() for state in states if state.dim())
        return nn.functional.cross_entropy(scores, labels)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_dry_run_uses_the_precision_settings_of_the_training(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN reuses the algorithms chosen in the dry run."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    spec, switches = replace(find_workload("vgg16-cifar10"), classes=CLASSES), Switches()
    asked = config(image_size=32, loader="synthetic", workload="vgg16-cifar10", precision=precision)
    dry_run_memory(asked, spec, tiny_net(), switches, world_of_one())
    assert switches.seen == ((precision == "tf32",) * 2, True)


@pytest.mark.parametrize(("optimizer", "values"), [("sgd", 1), ("adam", 2)])
def test_dry_run_allocates_optimizer_state_before_forward(optimizer: str, values: int) -> None:
    gc.collect()
    spec = replace(find_workload("vgg16-cifar10"), classes=CLASSES)
    model, looking = tiny_net(), Looking()
    asked = config(optimizer=optimizer, momentum=0.9, image_size=32, loader="synthetic", workload="vgg16-cifar10")
    dry_run_memory(asked, spec, model, looking, world_of_one())
    assert looking.kept == values * sum(parameter.numel() for parameter in model.parameters())


def test_dry_run_may_take_as_long_as_a_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both try cuDNN's algorithms, which takes a minute in float32, and compile kernels."""
    marker, seen = ProgressMarker(60.0), []
    monkeypatch.setattr("ddpbench.bench.arm.dry_run_memory", lambda *_: seen.append(marker.timeout_s))
    asked = config(workload="vgg16-cifar10", image_size=32, batch_size=2, rounds=1, hang_timeout=50.0)
    arm = Arm(asked, world_of_one(), marker, ArmOptions(num_arms=2))
    arm.activate()
    arm.park()
    assert seen == [first_step_timeout_s(asked)]
    assert seen[0] > marker.timeout_s == 50


def test_dry_run_that_fails_late_is_no_hang() -> None:
    marker = ProgressMarker(1.0)
    position = marker.position
    with pytest.raises(ConfigFailed), marker.allow(60.0):
        raise ConfigFailed("out of memory")
    assert marker.timeout_s == 1.0
    assert marker.position != position
