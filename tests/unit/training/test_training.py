"""The timed loop on a real, tiny training: phases, skipped updates, checksums and parking."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from training import CLASSES, InMemory, config, session, tiny_net, wide_net, world_of_one

from ddpbench.distributed.world import World
from ddpbench.machine.backends import get_tf32, set_tf32
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import UsageError
from ddpbench.record.trace import PHASES
from ddpbench.training.loss_tracker import LossTracker, SkippedUpdates, parameter_checksum
from ddpbench.training.optimizer import make_optimizer
from ddpbench.training.warmup import warm_up


def test_tf32_can_be_disabled_enabled_and_reset() -> None:
    set_tf32(None)
    shipped = get_tf32()
    set_tf32(True)
    assert get_tf32() == (True, True)
    set_tf32(False)
    assert get_tf32() == (False, False)
    set_tf32(None)
    assert get_tf32() == shipped


def test_tf32_is_rejected_on_cpu() -> None:
    with pytest.raises(UsageError, match="does not support --precision tf32"):
        session(world_of_one(), config(precision="tf32"))


def test_round_trains_and_its_phases_cover_the_wall_time() -> None:
    live = session(world_of_one(), config(lr=0.1))
    warm_up(live)
    trace = live.run_round(50)
    assert trace.samples == 50 * config().batch_size  # type: ignore[operator]
    assert {name: len(durations) for name, durations in trace.phases_ms.items()} == dict.fromkeys(PHASES, 50)
    explained_ms = sum(sum(durations) for durations in trace.phases_ms.values())
    assert 0.8 * trace.wall_s * 1e3 <= explained_ms <= trace.wall_s * 1e3
    assert trace.numerics.first_loss is not None
    assert trace.numerics.last_loss is not None
    assert trace.numerics.last_loss < trace.numerics.first_loss
    assert trace.numerics.params_checksum_after != trace.numerics.params_checksum_before


def test_parked_training_continues_identically() -> None:
    """Two rounds with and without parking in between end with the same parameters."""
    world, asked = world_of_one(), config(precision="fp32")
    through = session(world, asked)
    through.train(6)
    apart = session(world, asked)
    apart.train(3)
    again = session(world, asked, parked=apart.close())
    again.train(3)
    assert parameter_checksum(again.model.parameters()) == parameter_checksum(through.model.parameters())


def test_drained_steps_do_not_advance_the_schedule() -> None:
    live = session(world_of_one(), config(schedule="linear"))
    live.set_schedule_length(4, 4)
    for _ in range(2):
        numerics = live.run_round(2).numerics  # and one drained step before it
        assert numerics.params_checksum_before != numerics.params_checksum_after
    assert live.updates_done == 4


def torch_fused_sgd(model: nn.Module, settled: ResolvedConfig) -> torch.optim.Optimizer:
    """torch's fused SGD, which allocates its momentum buffers lazily."""
    return torch.optim.SGD(model.parameters(), lr=settled.lr, momentum=settled.momentum, weight_decay=settled.weight_decay, fused=True)


@pytest.fixture
def uninitialised_is_nan() -> Iterator[None]:
    """Fill uninitialised memory with NaN by torch's deterministic mode."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def skipped_in_twenty(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    """Skipped updates of 20 steps, starting at the scaler's default scale, which overflows float16."""
    scaler, batches = torch.amp.GradScaler("cpu"), InMemory(torch.device("cpu"))
    ledger, skipped_updates = LossTracker(log_loss=False), SkippedUpdates(optimizer)
    for _ in range(20):
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(batches.images), batches.labels, reduction="sum")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ledger.record_step(loss, skipped_updates.pop())
    skipped = ledger.finish(scaler.get_scale(), 0, 1).skipped_steps
    assert 0 in skipped, "the first update must overflow"
    return skipped


@pytest.mark.usefixtures("uninitialised_is_nan")
def test_torch_fused_sgd_becomes_nan_after_a_skipped_first_update() -> None:
    """Documents a torch bug; if this fails, torch fixed it, and fill_momentum can be removed."""
    model = tiny_net()
    skipped = skipped_in_twenty(model, torch_fused_sgd(model, config()))
    trained = next(step for step in range(20) if step not in skipped)
    assert skipped == [step for step in range(20) if step != trained], "one update, and none afterwards"
    assert all(parameter.isnan().any() for parameter in model.parameters())


@pytest.mark.usefixtures("uninitialised_is_nan")
def test_our_fused_sgd_survives_a_skipped_first_update() -> None:
    model = tiny_net()
    skipped = skipped_in_twenty(model, make_optimizer(model, config()))
    assert skipped == list(range(len(skipped))), "only until the scale fits"
    assert len(skipped) < 10
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_preallocated_momentum_does_not_change_updates() -> None:
    ended = []
    for make in (torch_fused_sgd, make_optimizer):
        model, batches = tiny_net(), InMemory(torch.device("cpu"))
        optimizer = make(model, config(weight_decay=1e-2))
        for _ in range(5):
            nn.functional.cross_entropy(model(batches.images), batches.labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        ended.append(parameter_checksum(model.parameters()))
    assert ended[0] == ended[1]


def test_loss_tracker_detects_skips_of_every_implementation() -> None:
    for implementation in ("fused", "foreach", "loop", "triton"):
        model = tiny_net()
        optimizer = make_optimizer(model, config(optimizer_impl=implementation))
        ledger, scaler = LossTracker(log_loss=False), torch.amp.GradScaler("cpu", init_scale=1.0)
        skipped_updates = SkippedUpdates(optimizer)
        for step in range(3):
            images = torch.ones(2, 3, 16, 16) * (math.inf if step == 1 else 1.0)
            loss = torch.nn.functional.cross_entropy(model.eval()(images), torch.arange(2) % CLASSES)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ledger.record_step(loss, skipped_updates.pop())
        numerics = ledger.finish(None, 0, 1)
        assert (numerics.skipped_steps, numerics.nonfinite_step) == ([1], 1), implementation


def test_parameter_checksum_changes_with_a_single_bit() -> None:
    model = tiny_net()
    before = parameter_checksum(model.parameters())
    with torch.no_grad():
        weight = next(model.parameters())
        weight.view(torch.int32)[0, 0, 0, 0] ^= 1
    assert parameter_checksum(model.parameters()) != before


def peaks(world: World, settled: ResolvedConfig, build: Callable[[], nn.Module]) -> tuple[int, int]:
    """(allocated, reserved) peak bytes of a round of a new session, which is then closed."""
    live = session(world, settled, build())
    warm_up(live)
    memory = live.run_round(3).memory
    live.close()
    assert memory.allocated_bytes is not None
    assert memory.reserved_bytes is not None
    return memory.allocated_bytes, memory.reserved_bytes


@pytest.mark.cuda
@pytest.mark.parametrize("compiled", ["off", "reduce-overhead"])
def test_closed_session_releases_its_memory(compiled: str) -> None:
    """Memory left by a closed wide session and its CUDA graphs would appear in the peaks of the narrow one."""
    world, narrow = world_of_one("cuda"), config("cuda", precision="amp-fp16")
    alone, alone_reserved = peaks(world, narrow, tiny_net)
    wide, _ = peaks(world, config("cuda", precision="amp-fp16", compile=compiled), wide_net)
    assert wide > alone + 2**26, "large enough to be detected"
    after, after_reserved = peaks(world, narrow, tiny_net)
    assert after <= alone + 2**23
    assert after_reserved <= alone_reserved + 2**25, "the allocator reserves in steps of up to 20 MiB"
