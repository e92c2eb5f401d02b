"""Trainings with ``--cuda-graph`` are those without it: losses, skipped updates, marks of phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from training import CLASSES, SIDE, InMemory, config, session, tiny_net, world_of_one

from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.cuda_graph import check_graph_supported
from ddpbench.record.errors import ConfigFailed, UsageError
from ddpbench.training.loop import mark_last_gradient
from ddpbench.training.session import Session
from ddpbench.training.step_graph import EAGER_STEPS, GraphedEngine
from ddpbench.training.warmup import warm_up

STEPS = 8


class Alternating(InMemory):
    """Two batches in turn."""

    def next_batch(self, on_host_ready: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
        self.images, self.labels = self.images.neg(), self.labels.flip(0)
        return super().next_batch(on_host_ready)


def opened(cuda_graph: bool, model: nn.Module | None = None, loader: InMemory | None = None, **settings: Any) -> Session:
    world, settled = world_of_one("cuda"), config("cuda", cuda_graph=cuda_graph, **{"fresh": True, **settings})
    loader = loader or Alternating(world.device.torch_device)
    session = Session(settled, model or tiny_net(), nn.CrossEntropyLoss(), loader, world, ProgressMarker(60.0))
    mark_last_gradient(next(session.model.parameters()), session.timer)
    return session


@pytest.mark.cuda
@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "fp32"},
        {"precision": "amp-fp16"},
        {"precision": "amp-fp16", "static_loss_scale": 128.0},
        {"precision": "amp-bf16"},
        {"precision": "o2"},
        {"precision": "amp-fp16", "optimizer": "adam"},
        {"precision": "fp16", "static_loss_scale": 128.0, "optimizer": "adam"},
        {"precision": "fp32", "optimizer_impl": "foreach"},
        {"precision": "fp32", "optimizer_impl": "triton"},
        {"precision": "amp-fp16", "optimizer_impl": "triton"},
        {"precision": "o2", "optimizer_impl": "triton"},
        {"precision": "fp32", "log_loss": True},
    ],
    ids=str,
)
def test_training_in_a_graph_is_that_without(settings: dict[str, Any]) -> None:
    ends = []
    for cuda_graph in (False, True):
        live = opened(cuda_graph, **settings)
        live.train(EAGER_STEPS + 1)
        assert not cuda_graph or (isinstance(live.engine, GraphedEngine) and live.engine.peak_bytes > 0)
        found = live.run_round(STEPS, max_drain_s=0)
        assert found.numerics.nonfinite_step is None
        assert all(len(times) == STEPS and min(times) >= 0 for times in found.phases_ms.values())
        parameters = torch.cat([parameter.detach().float().flatten() for parameter in live.model.parameters()])
        ends.append((found.numerics.first_loss, found.numerics.last_loss, parameters))
        live.close()
    plain, graphed = ends
    assert graphed[:2] == pytest.approx(plain[:2], rel=0.01)
    torch.testing.assert_close(graphed[2], plain[2], rtol=0.01, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "amp-fp16"},
        {"precision": "amp-fp16", "static_loss_scale": 100.0},
        {"precision": "amp-fp16", "optimizer": "adam"},
        {"precision": "amp-fp16", "optimizer_impl": "triton"},
        {"precision": "o2"},
        {"precision": "fp16", "static_loss_scale": 65536.0, "optimizer": "adam"},
    ],
    ids=str,
)
def test_gradients_of_a_graph_are_unscaled_to_the_same_update(settings: dict[str, Any]) -> None:
    """On a CPU, where the setting captures nothing."""
    ends = []
    for cuda_graph in (False, True):
        given = settings if cuda_graph else {**settings, "optimizer_impl": "fused"}
        live = session(world_of_one(), config(cuda_graph=cuda_graph, fresh=True, **given), tiny_net())
        numerics = live.run_round(STEPS, max_drain_s=0).numerics
        parameters = torch.cat([parameter.detach().float().flatten() for parameter in live.model.parameters()])
        ends.append((numerics.skipped_steps, live.loss_scale(), parameters))
        live.close()
    plain, graphed = ends
    assert graphed[:2] == plain[:2]
    assert len(plain[0]) < STEPS
    torch.testing.assert_close(graphed[2], plain[2], rtol=1e-5, atol=1e-6)


@pytest.mark.cuda
def test_graph_reads_the_only_batch_of_a_loader_and_leaves_batches_of_others_alone() -> None:
    losses = []
    for num_batches in (1, 2):
        loader = InMemory(torch.device("cuda", 0))
        loader.data = replace(loader.data, num_batches=num_batches)
        live = opened(True, loader=loader, precision="fp32")
        live.train(EAGER_STEPS + 1)
        assert isinstance(live.engine, GraphedEngine)
        assert live.engine._graph is not None
        assert (live.engine._graph.images is loader.images) == (num_batches == 1)
        first = loader.images
        loader.images, kept = first.neg(), first.clone()  # another batch
        losses.append(live.run_round(STEPS, max_drain_s=0).numerics.last_loss)
        assert torch.equal(first, kept) == (num_batches == 2)
        live.close()
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


class Wide(nn.Module):
    """Layers that keep a GPU busy much longer than the host needs to launch them."""

    WIDTH = 8192

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIDE * SIDE, self.WIDTH), *(nn.Linear(self.WIDTH, self.WIDTH) for _ in range(6))
        )
        self.head = nn.Linear(self.WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(images))


@pytest.mark.cuda
def test_step_in_a_graph_has_the_phases_of_one_without() -> None:
    shares = []
    for cuda_graph in (False, True):
        live = opened(cuda_graph, Wide(), precision="fp32")
        live.train(EAGER_STEPS + 1)
        phases_ms = live.run_round(4 * STEPS, max_drain_s=0).phases_ms
        step_ms = sum(map(sum, phases_ms.values()))
        shares.append({phase: sum(phases_ms[phase]) / step_ms for phase in ("forward", "backward", "optimizer")})
        live.close()
    plain, graphed = shares
    assert min(plain.values()) > 0.1, plain
    assert graphed == pytest.approx(plain, rel=0.25)


@pytest.mark.cuda
def test_updates_that_the_scaler_skips_in_a_graph_are_recorded() -> None:
    skipped = []
    for cuda_graph in (False, True):
        live = opened(cuda_graph, precision="amp-fp16")
        live.train(EAGER_STEPS + 1)
        live.engine.load_scaler_state({**live.engine.scaler_state(), "scale": 2.0**20})
        skipped.append(live.run_round(STEPS, max_drain_s=0).numerics.skipped_steps)
        live.close()
    assert skipped[0] == skipped[1]
    assert 0 < len(skipped[1]) < STEPS


@pytest.mark.cuda
def test_warm_up_of_a_fresh_training_ends_after_the_capture() -> None:
    live = opened(True, precision="amp-fp16")
    warmup, _, _ = warm_up(live)
    assert warmup.warmup_steps > EAGER_STEPS
    assert live.engine.peak_bytes > 0
    live.close()


@pytest.mark.cuda
def test_training_from_scratch_in_the_same_graphs_starts_again() -> None:
    live = opened(True, precision="amp-fp16")
    weights = {name: tensor.clone() for name, tensor in live.model.state_dict().items()}
    live.train(EAGER_STEPS + 1)
    losses = []
    for _ in range(2):
        live.reset(weights, lambda: Alternating(live.world.device.torch_device))
        losses.append(live.run_round(STEPS, max_drain_s=0).numerics.last_loss)
    assert losses[0] == losses[1]
    live.close()


class Waits(nn.Module):
    """Allocates 256 MiB, then waits for the device, which a graph cannot."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.new_empty(64 << 20)
        return x * (1.0 if x.sum().item() else 2.0)


@pytest.mark.cuda
def test_step_that_cannot_be_captured_is_named_and_the_next_training_unharmed() -> None:
    live, current = opened(True, nn.Sequential(tiny_net(), Waits()), precision="fp32"), torch.cuda.current_stream()
    with pytest.raises(ConfigFailed, match=r"--cuda-graph cannot capture this step: .*captur") as failed:
        live.train(EAGER_STEPS + 1)
    assert failed.value.hint == "use --no-cuda-graph"
    live.close()
    assert torch.cuda.current_stream() == current
    torch.cuda.empty_cache()
    before, unused = torch.cuda.memory_allocated(), torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    assert unused < 128 << 20, "the memory of the graphs is free"
    noise = torch.randn(1 << 20, device="cuda")
    noise.record_stream(torch.cuda.Stream())
    del noise
    torch.cuda.synchronize()
    torch.randn(1, device="cuda")  # an allocation looks for blocks that other streams have finished with
    assert torch.cuda.memory_allocated() - before < 1 << 20


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"engine": "accelerate"}, "cannot capture a step of --engine accelerate"),
        ({"schedule": "linear"}, "--schedule changes"),
        ({"compile": "reduce-overhead"}, "already uses CUDA graphs"),
        ({"set_to_none": False}, "set to None"),
        ({"share_gpu": True}, "cannot capture gradient sync over gloo"),
        ({"precision": "amp-fp16", "optimizer_impl": "foreach"}, "waits for the loss scaler"),
        ({"precision": "fp16", "static_loss_scale": 128.0, "optimizer_impl": "foreach"}, "waits for the loss scaler"),
    ],
)
def test_step_that_cannot_be_a_graph_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_graph_supported(config(cuda_graph=True, **settings))


def test_step_of_a_plain_training_can_be_a_graph() -> None:
    check_graph_supported(config(cuda_graph=True, precision="amp-fp16"))
