"""What the fused kernels would replace is counted without running them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fused import INTERPRETED
from residual_net import Net
from torch import nn
from training import InMemory, config, session, world_of_one

from ddpbench.kernels import deferred
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.roofline import FusedWork, LayerWork
from ddpbench.training.fused_work import count_fused_work
from ddpbench.training.precision import cast_model
from ddpbench.training.roofline import measure_layers
from ddpbench.training.session import Session
from ddpbench.workloads.init_model import clone


def opened(model: nn.Module, device: str, **settings: Any) -> Session:
    """A training on images in channels-last order."""
    live = session(world_of_one(device), config(device, **settings), model)
    assert isinstance(live._loader, InMemory)
    live._loader.images = live._loader.images.contiguous(memory_format=torch.channels_last)
    live.set_schedule_length(100, 100)
    live.train(3)
    return live


def counted(model: nn.Module, device: str = "cpu", **settings: Any) -> tuple[Session, list[LayerWork], FusedWork]:
    live = opened(model, device, **settings)
    layers = measure_layers(live)
    return (
        live,
        layers,
        count_fused_work(live, layers, lambda: cast_model(clone(model, torch.device("cpu")), PRECISIONS[live.config.precision])),
    )


IMAGES = "conv"
"""The convolution that runs over blocks of pixels, except in IEEE float32."""


def is_replaced(layer: LayerWork, fused: FusedWork) -> bool:
    """Norms, activations, pools and additions are replaced; gradients and most convolutions stay."""
    return bool(layer.kind) and (layer.name == IMAGES if layer.forward.flops and fused.flops else not layer.forward.flops)


def check_replaced(layers: list[LayerWork], fused: FusedWork) -> None:
    replaced = [layer for layer in layers if is_replaced(layer, fused)]
    assert fused.replaced_ms == pytest.approx(sum(work.ms for layer in replaced for work in (layer.forward, layer.backward)))


def bytes_of(layers: list[LayerWork]) -> float:
    """Bytes of all layers of the model, forward and backward."""
    return sum(work.num_bytes for layer in layers if layer.kind for work in (layer.forward, layer.backward))


def check_running(plain: list[LayerWork], running: list[LayerWork], fused: FusedWork) -> None:
    """The counts are what the running kernels do: all bytes of the fused model, less those of what stays, and the FLOPs that differ."""
    assert bytes_of(running) - bytes_of([layer for layer in plain if not is_replaced(layer, fused)]) == pytest.approx(
        fused.num_bytes, rel=0.01
    )
    if fused.flops:
        (images,) = (layer for layer in running if layer.name == IMAGES)
        assert images.forward.flops + images.backward.flops == fused.flops


@INTERPRETED
def test_norms_and_additions_are_replaced_and_the_model_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[object] = []
    monkeypatch.setattr(
        deferred, "batch_statistics_of", lambda y, norm, run=deferred.batch_statistics_of: (runs.append(y), run(y, norm))[1]
    )
    before = {name: type(module) for name, module in Net().named_modules()}
    live, layers, fused = counted(Net())
    check_replaced(layers, fused)
    assert runs
    assert all(isinstance(y, torch._subclasses.FakeTensor) for y in runs)
    assert {name: type(module) for name, module in live.model.named_modules()} == before
    assert not any(isinstance(tensor, torch._subclasses.FakeTensor) for tensor in live.model.state_dict().values())
    live.train(1)
    live.close()


def test_model_without_anything_to_fuse_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot fuse anything"):
        counted(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4)))


def run_fused(device: str, **settings: Any) -> list[LayerWork]:
    """The layers of a training that runs the fused kernels."""
    live = opened(Net(), device, fused_kernels=True, **settings)
    layers = measure_layers(live)
    live.close()
    return layers


@INTERPRETED
@pytest.mark.slow
@pytest.mark.timeout(600)  # interpreted kernels take minutes on a slow processor
@pytest.mark.parametrize(("precision", "over_blocks"), [("fp32", False), ("torch-default", True)])
def test_counted_work_is_that_of_interpreted_kernels(precision: str, over_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    live, layers, fused = counted(Net(), precision=precision)
    live.close()
    assert bool(fused.flops) == over_blocks
    check_replaced(layers, fused)
    monkeypatch.setattr(ResolvedConfig, "runs_fused_kernels", lambda self, _: self.fused_kernels)
    check_running(layers, run_fused("cpu", precision=precision), fused)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16", "o2"])
def test_counted_work_is_that_of_the_kernels(precision: str) -> None:
    live, layers, fused = counted(Net(), "cuda", precision=precision)
    live.close()
    check_replaced(layers, fused)
    check_running(layers, run_fused("cuda", precision=precision), fused)
