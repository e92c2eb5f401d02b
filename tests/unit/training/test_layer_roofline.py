"""Work and time per layer of a training step."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launches import TORCHRUN
from residual_net import Net
from torch import Tensor, nn
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint
from training import BATCH, CLASSES, SIDE, config, session, tiny_net, world_of_one

from ddpbench.bench.preflight import resolve_and_check
from ddpbench.machine.device import open_device
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.roofline import LayerWork
from ddpbench.training import roofline
from ddpbench.training.layer_tracker import GRADIENTS, OPTIMIZER, OTHER, LayerTracker
from ddpbench.training.profiler import PROFILED_STEPS
from ddpbench.training.roofline import LOSS, measure_layers
from ddpbench.workloads.model_cost import model_cost

PARTS = {LOSS, GRADIENTS, OPTIMIZER, OTHER}


def layers_of(model: nn.Module, device: str = "cpu", **settings: Any) -> dict[str, LayerWork]:
    live = session(world_of_one(device), config(device, **settings), model)
    live.set_schedule_length(100, 100)
    live.train(3)
    layers = measure_layers(live)
    live.close()
    return {layer.name: layer for layer in layers}


def total(layers: dict[str, LayerWork], field: str) -> float:
    return sum(getattr(work, field) for layer in layers.values() for work in (layer.forward, layer.backward))


def check_layers(layers: dict[str, LayerWork], model: nn.Module) -> None:
    """All FLOPs are found, and every layer with operators has work and time in both directions."""
    assert total(layers, "flops") == pytest.approx(BATCH * model_cost(model, (3, SIDE, SIDE), CLASSES).flops_per_sample)
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    assert {name: layer.kind for name, layer in layers.items() if name not in PARTS} == {
        name: kind for name, kind in kinds.items() if name in layers
    }
    computing = {name for name, kind in kinds.items() if kind in ("Conv2d", "BatchNorm2d", "ReLU", "Linear")}
    assert computing <= set(layers)
    for name in computing | {LOSS}:
        for work in (layers[name].forward, layers[name].backward):
            assert work.num_bytes > 0, name
            assert work.kernels > 0, name
            assert work.ms > 0, name


def test_every_layer_of_a_small_net_is_measured() -> None:
    layers = layers_of(tiny_net())
    check_layers(layers, tiny_net())
    assert set(layers) - PARTS == {"0", "1", "2", "3", "5"}  # Flatten is a view
    assert layers["0"].backward.flops == layers["0"].forward.flops  # images need no gradient
    assert layers["5"].backward.flops == 2 * layers["5"].forward.flops
    parameters = sum(each.numel() for each in tiny_net().parameters())
    assert layers[OPTIMIZER].forward.num_bytes == pytest.approx(4 * 5 * parameters, rel=0.1)  # reads 3, writes 2


def test_additions_belong_to_their_block() -> None:
    model = Net()
    layers = layers_of(model)
    check_layers(layers, model)
    blocks = [name for name, layer in layers.items() if layer.kind not in ("Conv2d", "BatchNorm2d", "ReLU", "Linear", "MaxPool2d", "")]
    assert blocks
    assert all(layers[name].forward.flops == 0 for name in blocks)


def test_layers_under_autocast_are_measured() -> None:
    layers = layers_of(tiny_net(), precision="amp-bf16")
    check_layers(layers, tiny_net())


def test_times_of_layers_add_up_to_those_of_all_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[profile] = []

    def recorded(**settings: Any) -> profile:
        windows.append(profile(**settings))
        return windows[-1]

    monkeypatch.setattr(roofline, "profile", recorded)
    layers = layers_of(tiny_net())
    (window,) = windows
    operators = [event for event in window.events() or [] if event.name.startswith("aten::")]
    all_ms = sum(event.self_cpu_time_total for event in operators) / 1e3
    assert total(layers, "ms") * PROFILED_STEPS == pytest.approx(all_ms, rel=0.05)  # without modules that only make views
    backward = [event.self_cpu_time_total for event in operators if event.name == "aten::convolution_backward"]
    assert layers["0"].backward.ms * PROFILED_STEPS >= sum(backward) / 1e3 > 0


def test_profiler_without_kernels_gives_no_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "time_layers", lambda *_: defaultdict(roofline.Timed))
    assert layers_of(tiny_net()) == {}


class Recomputed(nn.Module):
    """A block that is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3 * SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1).requires_grad_()
        out: Tensor = self.head(checkpoint(self.block, flat, use_reentrant=False))
        return out


def test_recomputed_layers_keep_their_names() -> None:
    layers = layers_of(Recomputed())
    first, head = layers["block.0"], layers["head"]
    assert first.backward.flops == 3 * first.forward.flops  # again, and both gradients
    assert first.backward.ms > 0
    assert head.backward.flops == 2 * head.forward.flops
    assert OTHER not in layers or layers[OTHER].backward.flops == 0


class SharedLayer(nn.Module):
    """Runs one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(3 * SIDE * SIDE, 3 * SIDE * SIDE, bias=False), nn.Linear(3 * SIDE * SIDE, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.shared(self.shared(images.flatten(1)).sigmoid()))
        return out


def test_layer_that_runs_twice_counts_twice() -> None:
    layers = layers_of(SharedLayer())
    once = 2 * BATCH * (3 * SIDE * SIDE) ** 2
    assert layers["shared"].forward.flops == 2 * once
    assert layers["shared"].backward.flops == 3 * once  # the first call's input needs no gradient
    assert layers[""].kind == "SharedLayer"  # the sigmoid
    assert layers[""].backward.num_bytes > 0


def test_tracker_leaves_no_hooks_and_ignores_other_modules() -> None:
    inner = nn.Linear(2, 2)
    tracker = LayerTracker({inner: "inner"})
    with tracker.track():
        out = nn.Sequential(inner, nn.ReLU())(torch.ones(1, 2))
    assert tracker.layer_of_node(out.grad_fn._sequence_nr()) == OTHER
    assert tracker.layer_of_node(out.grad_fn.next_functions[0][0]._sequence_nr()) == "inner"
    assert tracker.layer_of_node(-1) == tracker.layer_of_node(2**64 - 1) == GRADIENTS
    later = inner(torch.ones(1, 2))
    assert tracker.layer_of_node(later.grad_fn._sequence_nr()) == OTHER


def test_compiled_model_is_refused() -> None:
    rank_env = RankEnv(host="here")
    device = open_device("cpu", rank_env, share_gpu=False)
    with pytest.raises(UsageError, match="--roofline needs an eager model"):
        resolve_and_check(Config(workload="mnist-cnn", device="cpu", roofline=True, compile="default"), device, rank_env)


@pytest.mark.slow
def test_two_ranks_record_the_layers_of_rank_0(launch: Callable[..., Any], results: Path) -> None:
    words = ["resnet18", "--image-size", "32", "-b", "4", "--device", "cpu", "--rounds", "2", "--steps", "3", "--roofline"]
    done = launch([*TORCHRUN, *words, "-o", str(results)])
    assert done.returncode == 0, done.stderr
    (path,) = results.glob("*.json")
    recorded = json.loads(path.read_text())["records"][0]["roofline"]
    layers = {layer["name"]: layer for layer in recorded["layers"]}
    assert layers["layer4.1.conv2"]["backward"]["flops"] > 0
    assert layers[GRADIENTS]["backward"]["ms"] > 0
    assert all(value > 0 for value in recorded["limits"].values())
    assert layers[GRADIENTS]["backward"]["num_bytes"] == pytest.approx(4 * 2 * 11_689_512, rel=0.05)  # into the buckets
    assert "most above their limit" in done.stdout


@pytest.mark.cuda
@pytest.mark.parametrize("settings", [{}, {"precision": "amp-fp16"}, {"fused_kernels": True}], ids=["fp32", "amp-fp16", "fused"])
def test_kernels_on_gpu_belong_to_layers(settings: dict[str, Any]) -> None:
    model = Net()
    layers = layers_of(model, "cuda", **settings)
    assert total(layers, "flops") == pytest.approx(BATCH * model_cost(model, (3, SIDE, SIDE), CLASSES).flops_per_sample)
    convolutions = [layer for layer in layers.values() if layer.kind == "Conv2d"]
    assert all(work.kernels > 0 and work.ms > 0 for layer in convolutions for work in (layer.forward, layer.backward))
    assert layers[OPTIMIZER].forward.ms > 0
