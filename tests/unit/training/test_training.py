"""The timed loop on a real, tiny training: what it attests, what it catches, and that it goes on where it was parked."""

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
from ddpbench.training.loss_tracker import LossTracker, parameter_checksum
from ddpbench.training.optimizer import make_optimizer
from ddpbench.training.warmup import warm_up


def test_tf32_goes_off_on_and_back_to_what_torch_ships() -> None:
    set_tf32(None)
    shipped = get_tf32()
    set_tf32(True)
    assert get_tf32() == (True, True)
    set_tf32(False)
    assert get_tf32() == (False, False)
    set_tf32(None)
    assert get_tf32() == shipped


def test_tf32_is_refused_on_a_cpu() -> None:
    with pytest.raises(UsageError, match="does not support --precision tf32"):
        session(world_of_one(), config(precision="tf32"))


def test_a_round_learns_and_its_phases_fill_the_wall_clock() -> None:
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


def test_a_parked_training_goes_on_where_it_stood() -> None:
    """Two rounds in one go and two rounds with the training parked between them end at the same parameters."""
    world, asked = world_of_one(), config(precision="fp32")
    through = session(world, asked)
    through.train(6)
    apart = session(world, asked)
    apart.train(3)
    again = session(world, asked, parked=apart.close())
    again.train(3)
    assert parameter_checksum(again.model.parameters()) == parameter_checksum(through.model.parameters())


def test_what_is_trained_away_before_a_round_is_no_part_of_the_schedule() -> None:
    live = session(world_of_one(), config(schedule="linear"))
    live.set_schedule_length(4, 4)
    for _ in range(2):
        numerics = live.run_round(2).numerics  # and one step before it, for the batch in flight
        assert numerics.params_checksum_before != numerics.params_checksum_after
    assert live.updates_done == 4


def torchs_own(model: nn.Module, settled: ResolvedConfig) -> torch.optim.Optimizer:
    """Fused SGD that makes its momentum buffers itself."""
    return torch.optim.SGD(model.parameters(), lr=settled.lr, momentum=settled.momentum, weight_decay=settled.weight_decay, fused=True)


@pytest.fixture
def uninitialised_is_nan() -> Iterator[None]:
    """Memory that nobody wrote holds NaN, by torch's own switch, and not whatever was there before."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def skipped_in_twenty(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    """The updates that the scaler skips, from its default scale on, which is too high for the first: float16 overflows."""
    scaler, ledger, batches = torch.amp.GradScaler("cpu"), LossTracker(optimizer, log_loss=False), InMemory(torch.device("cpu"))
    for _ in range(20):
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(batches.images), batches.labels, reduction="sum")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ledger.record_step(loss)
    skipped = ledger.finish(scaler.get_scale(), 0, 1).skipped_steps
    assert 0 in skipped, "the first update must overflow, or nothing is shown"
    return skipped


@pytest.mark.usefixtures("uninitialised_is_nan")
def test_torchs_own_fused_sgd_dies_of_a_skipped_first_update() -> None:
    """The trap. Should this fail, torch has closed it, and fill_momentum may go."""
    model = tiny_net()
    skipped = skipped_in_twenty(model, torchs_own(model, config()))
    trained = next(step for step in range(20) if step not in skipped)
    assert skipped == [step for step in range(20) if step != trained], "one update, and none ever after"
    assert all(parameter.isnan().any() for parameter in model.parameters())


@pytest.mark.usefixtures("uninitialised_is_nan")
def test_a_skipped_first_update_does_not_kill_our_fused_sgd() -> None:
    model = tiny_net()
    skipped = skipped_in_twenty(model, make_optimizer(model, config()))
    assert skipped == list(range(len(skipped))), "until the scale fits, and never again"
    assert len(skipped) < 10
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_momentum_that_is_there_from_the_start_changes_no_update() -> None:
    ended = []
    for make in (torchs_own, make_optimizer):
        model, batches = tiny_net(), InMemory(torch.device("cpu"))
        optimizer = make(model, config(weight_decay=1e-2))
        for _ in range(5):
            nn.functional.cross_entropy(model(batches.images), batches.labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        ended.append(parameter_checksum(model.parameters()))
    assert ended[0] == ended[1]


def test_the_ledger_sees_skips_of_every_implementation() -> None:
    for implementation in ("fused", "foreach", "loop"):
        model = tiny_net()
        optimizer = make_optimizer(model, config(optimizer_impl=implementation))
        ledger, scaler = LossTracker(optimizer, log_loss=False), torch.amp.GradScaler("cpu", init_scale=1.0)
        for step in range(3):
            images = torch.ones(2, 3, 16, 16) * (math.inf if step == 1 else 1.0)
            loss = torch.nn.functional.cross_entropy(model.eval()(images), torch.arange(2) % CLASSES)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ledger.record_step(loss)
        numerics = ledger.finish(None, 0, 1)
        assert (numerics.skipped_steps, numerics.nonfinite_step) == ([1], 1), implementation


def test_the_digest_changes_with_a_single_bit() -> None:
    model = tiny_net()
    before = parameter_checksum(model.parameters())
    with torch.no_grad():
        weight = next(model.parameters())
        weight.view(torch.int32)[0, 0, 0, 0] ^= 1
    assert parameter_checksum(model.parameters()) != before


def peaks(world: World, settled: ResolvedConfig, build: Callable[[], nn.Module]) -> tuple[int, int]:
    """Bytes that a round of a whole training, from its construction to its close, is charged for: (allocated, reserved)."""
    live = session(world, settled, build())
    warm_up(live)
    memory = live.run_round(3).memory
    live.close()
    assert memory.allocated_bytes is not None
    assert memory.reserved_bytes is not None
    return memory.allocated_bytes, memory.reserved_bytes


@pytest.mark.cuda
@pytest.mark.parametrize("compiled", ["off", "reduce-overhead"])
def test_a_closed_session_charges_nothing_to_the_next(compiled: str) -> None:
    """A wide training goes, and its CUDA graphs with it: what it left behind would stand in the peaks of the narrow one after it."""
    world, narrow = world_of_one("cuda"), config("cuda", precision="amp-fp16")
    alone, alone_reserved = peaks(world, narrow, tiny_net)
    wide, _ = peaks(world, config("cuda", precision="amp-fp16", compile=compiled), wide_net)
    assert wide > alone + 2**26, "or what it leaves could not be seen"
    after, after_reserved = peaks(world, narrow, tiny_net)
    assert after <= alone + 2**23
    assert after_reserved <= alone_reserved + 2**25, "the allocator reserves in steps of up to 20 MiB"
