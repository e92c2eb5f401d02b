"""The timed loop on a real, tiny training: what it attests, what it catches, and that it goes on where it was parked."""

from __future__ import annotations

import math

import pytest
import torch
from training import CLASSES, InMemory, config, session, tiny_net, world_of_one

from ddpbench.machine.switches import set_tf32, tf32
from ddpbench.record.errors import UsageError
from ddpbench.record.trace import PHASES
from ddpbench.training.ledger import Ledger, digest
from ddpbench.training.optimizer import make_optimizer

ATTESTED = {  # precision: (layers compute in, loss scaling, TF32 for matmul and cuDNN)
    "fp32": ("float32", False, (False, False)),
    "amp-fp16": ("float16", True, (True, True)),
    "amp-bf16": ("bfloat16", False, (True, True)),
}
ON_CUDA = {"tf32": ("float32", False, (True, True)), **ATTESTED}


def check_attestation(device: str, precision: str, promised: tuple[str, bool, tuple[bool, bool]]) -> None:
    live = session(world_of_one(device), config(device, precision=precision))
    _, seen, _ = live.warm_up(0.0)
    layers, scaled, switches = promised
    assert (seen.parameters, seen.gradients, seen.batch_norm) == (["float32"], ["float32"], ["float32"])
    assert (seen.first_layer, seen.last_layer) == (layers, layers)
    assert (seen.loss_scale is not None) == scaled
    assert (seen.tf32_matmul, seen.tf32_cudnn) == switches
    assert seen.optimizer == "SGD fused"


@pytest.mark.parametrize("precision", ATTESTED)
def test_a_precision_is_what_it_promises(precision: str) -> None:
    check_attestation("cpu", precision, ATTESTED[precision])


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ON_CUDA)
def test_a_precision_is_what_it_promises_on_a_gpu(precision: str) -> None:
    check_attestation("cuda", precision, ON_CUDA[precision])


def test_tf32_goes_off_on_and_back_to_what_torch_ships() -> None:
    set_tf32(None)
    shipped = tf32()
    set_tf32(True)
    assert tf32() == (True, True)
    set_tf32(False)
    assert tf32() == (False, False)
    set_tf32(None)
    assert tf32() == shipped


def test_tf32_is_refused_on_a_cpu() -> None:
    with pytest.raises(UsageError, match="tf32 is impossible"):
        session(world_of_one(), config(precision="tf32"))


def test_a_round_learns_and_its_phases_fill_the_wall_clock() -> None:
    live = session(world_of_one(), config(lr=0.1))
    live.warm_up(0.0)
    trace = live.round(20)
    assert trace.images == 20 * config().batch_size  # type: ignore[operator]
    assert {name: len(durations) for name, durations in trace.phases_ms.items()} == dict.fromkeys(PHASES, 20)
    assert sum(sum(durations) for durations in trace.phases_ms.values()) <= trace.wall_s * 1e3
    assert trace.numerics.first_loss is not None
    assert trace.numerics.last_loss is not None
    assert trace.numerics.last_loss < trace.numerics.first_loss
    assert trace.numerics.parameters_after != trace.numerics.parameters_before


def test_a_parked_training_goes_on_where_it_stood() -> None:
    """Two rounds in one go and two rounds with the training parked between them end at the same parameters."""
    world, asked = world_of_one(), config(precision="fp32")
    through = session(world, asked)
    through._train(6)
    apart = session(world, asked)
    apart._train(3)
    again = session(world, asked, parked=apart.close())
    again._train(3)
    assert digest(again.model) == digest(through.model)


def losses_of(fill: bool) -> tuple[list[int], float | None]:
    """Ten steps of fused SGD under a loss scale at which the first update overflows; (skipped steps, last loss)."""
    model = tiny_net()
    optimizer = make_optimizer(model, config()) if fill else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    scaler, ledger, batches = torch.amp.GradScaler("cpu", init_scale=2.0**126), Ledger(optimizer), InMemory(torch.device("cpu"), 1e3)
    for _ in range(10):
        loss = torch.nn.functional.cross_entropy(model(batches.images), batches.labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ledger.note(loss)
    numerics = ledger.close(scaler.get_scale(), 0, 1)
    return numerics.skipped_steps, numerics.last_loss


def test_a_skipped_first_update_does_not_kill_fused_sgd() -> None:
    skipped, last_loss = losses_of(fill=True)
    assert skipped[0] == 0, "the first update must overflow, or this test shows nothing"
    assert len(skipped) < 10
    assert last_loss is not None


def test_the_ledger_sees_skips_of_every_implementation() -> None:
    for implementation in ("fused", "foreach", "loop"):
        model = tiny_net()
        optimizer = make_optimizer(model, config(optimizer_impl=implementation))
        ledger, scaler = Ledger(optimizer), torch.amp.GradScaler("cpu", init_scale=1.0)
        for step in range(3):
            images = torch.ones(2, 3, 16, 16) * (math.inf if step == 1 else 1.0)
            loss = torch.nn.functional.cross_entropy(model.eval()(images), torch.arange(2) % CLASSES)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ledger.note(loss)
        numerics = ledger.close(None, 0, 1)
        assert (numerics.skipped_steps, numerics.nonfinite_step) == ([1], 1), implementation


def test_the_digest_changes_with_a_single_bit() -> None:
    model = tiny_net()
    before = digest(model)
    with torch.no_grad():
        weight = next(model.parameters())
        weight.view(torch.int32)[0, 0, 0, 0] ^= 1
    assert digest(model) != before


@pytest.mark.cuda
def test_a_closed_session_holds_nothing_on_the_gpu() -> None:
    world = world_of_one("cuda")
    before = torch.cuda.memory_allocated()
    live = session(world, config("cuda", precision="amp-fp16"))
    live.warm_up(0.0)
    live.round(3)
    live.close()
    assert torch.cuda.memory_allocated() <= before + 2**20, "cuBLAS may keep a workspace"
