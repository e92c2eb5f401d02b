"""Every precision on a real, tiny training: observed dtypes, master weights, loss scale, parking."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import records
import torch
from launches import SUPPORT, TORCHRUN
from torch import nn
from training import config, session, tiny_net, world_of_one

from ddpbench.analysis.checks.rules import run_checks
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.machine.step_timer import HostStepTimer
from ddpbench.record.checks import PrecisionMismatch, UnusedLossScale
from ddpbench.record.errors import UsageError
from ddpbench.record.record import ObservedPrecision, Record
from ddpbench.record.registry import PRECISION_ALIASES, PRECISIONS, find_precision
from ddpbench.training.engines import make_engine
from ddpbench.training.loss_tracker import parameter_checksum
from ddpbench.training.optimizer import check_optimizer_supported, implementation_of, make_optimizer
from ddpbench.training.precision import cast_model, check_precision_supported
from ddpbench.training.session import Session
from ddpbench.training.step import Engine
from ddpbench.training.warmup import warm_up

IMPLEMENTATIONS = ("fused", "foreach", "loop")


@dataclass(frozen=True)
class ExpectedPrecision:
    """Expected dtypes and settings of a precision."""

    parameters: list[str]
    batch_norm: str
    layers: str
    tf32: tuple[bool, bool] = (True, True)
    scaled: bool = False
    master: str = ""


SINGLE, HALF, BRAIN = ["float32"], ["float16"], ["bfloat16"]
EXPECTED = {
    "torch-default": ExpectedPrecision(SINGLE, "float32", "float32", tf32=(False, True)),
    "fp32": ExpectedPrecision(SINGLE, "float32", "float32", tf32=(False, False)),
    "amp-fp16": ExpectedPrecision(SINGLE, "float32", "float16", scaled=True),
    "amp-bf16": ExpectedPrecision(SINGLE, "float32", "bfloat16"),
    "o2": ExpectedPrecision(["float16", "float32"], "float32", "float16", scaled=True, master="float32"),
    "fp16": ExpectedPrecision(HALF, "float16", "float16"),
    "bf16": ExpectedPrecision(BRAIN, "bfloat16", "bfloat16"),
}
EXPECTED_ON_CUDA = {"tf32": ExpectedPrecision(SINGLE, "float32", "float32"), **EXPECTED}


def check_observed_precision(device: str, name: str, promise: ExpectedPrecision) -> None:
    live = session(world_of_one(device), config(device, precision=name))
    _, seen, _ = warm_up(live)
    assert (seen.parameter_dtypes, seen.gradient_dtypes) == (promise.parameters, promise.parameters)
    assert seen.batch_norm_dtypes == [promise.batch_norm]
    assert (seen.first_layer_dtype, seen.last_layer_dtype) == (promise.layers, promise.layers)
    assert (seen.tf32_matmul, seen.tf32_cudnn) == promise.tf32
    assert (seen.loss_scale is not None) == promise.scaled
    assert seen.master_weight_dtype == promise.master
    assert seen.optimizer == "SGD fused"
    assert mismatch(a_record(name, seen)) is None


@pytest.mark.parametrize("name", EXPECTED)
def test_observed_precision_matches_its_definition(name: str) -> None:
    check_observed_precision("cpu", name, EXPECTED[name])


@pytest.mark.cuda
@pytest.mark.parametrize("name", EXPECTED_ON_CUDA)
def test_observed_precision_matches_its_definition_on_gpu(name: str) -> None:
    check_observed_precision("cuda", name, EXPECTED_ON_CUDA[name])


def test_apex_levels_are_case_insensitive_aliases() -> None:
    assert {level: find_precision(level).name for level in PRECISION_ALIASES} == {"O0": "fp32", "O1": "amp-fp16", "O2": "o2", "O3": "fp16"}
    assert {find_precision(level.lower()).name for level in PRECISION_ALIASES} == set(PRECISION_ALIASES.values())
    assert all(find_precision(name) is spec for name, spec in PRECISIONS.items())
    with pytest.raises(UsageError, match="unknown precision 'fp61'") as refused:
        find_precision("fp61")
    assert refused.value.hint.startswith("did you mean 'fp16'")


def test_compute_dtype_of_every_precision() -> None:
    assert {name: PRECISIONS[name].compute_dtype for name in EXPECTED} == {
        "torch-default": "tf32",
        "fp32": "float32",
        "amp-fp16": "float16",
        "amp-bf16": "bfloat16",
        "o2": "float16",
        "fp16": "float16",
        "bf16": "bfloat16",
    }


def test_cast_model_has_float32_inputs_and_outputs() -> None:
    model = cast_model(tiny_net(), PRECISIONS["o2"])
    for mode in (model.train(), model.eval()):
        assert mode(torch.ones(2, 3, 16, 16)).dtype == torch.float32
    assert {name: buffer.dtype for name, buffer in model.named_buffers()} == {
        "1.running_mean": torch.float32,
        "1.running_var": torch.float32,
        "1.num_batches_tracked": torch.int64,
    }


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"optimizer": "adam"}, "updates by SGD, not by adam"),
        ({"precision": "bf16"}, "updates float32 parameters, not those of --precision bf16"),
    ],
)
def test_what_sgd_in_triton_cannot_update_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_optimizer_supported(config(optimizer_impl="triton", **settings), is_cuda=True)


@pytest.mark.parametrize("name", ["fp32", "amp-fp16", "o2"])
def test_sgd_in_triton_updates_float32_parameters_and_master_weights(name: str) -> None:
    check_optimizer_supported(config(optimizer_impl="triton", precision=name), is_cuda=True)


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "triton"])
def test_implementation_of_an_optimizer_is_known(implementation: str) -> None:
    assert implementation_of(make_optimizer(tiny_net(), config(optimizer_impl=implementation))) == implementation


# Master weights


def single_weight_model(name: str, **asked: object) -> tuple[nn.Module, torch.optim.Optimizer, Engine]:
    """A model with a single weight of 1, whose gradient is always 1."""
    settled = config(precision=name, channels_last=False, lr=1e-5, momentum=0.9, weight_decay=0.0, **asked)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model = cast_model(model, PRECISIONS[name])
    optimizer = make_optimizer(model, settled)
    return model, optimizer, make_engine(model, optimizer, settled, PRECISIONS[name], world_of_one(), HostStepTimer(ProgressMarker(60.0)))


def weight_after(steps: int, model: nn.Module, engine: Engine) -> float:
    for _ in range(steps):
        engine.backward(engine.forward(torch.ones(1, 1), torch.ones(1, 1), torch.mul))
        engine.update()
    return next(model.parameters()).item()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_master_weights_accumulate_updates_below_half_resolution(implementation: str) -> None:
    """Each update is below 2^-12, half the float16 spacing below 1; twenty updates sum to five times that."""
    how = {"optimizer_impl": implementation}
    single, half = (single_weight_model(name, **how) for name in ("fp32", "fp16"))
    model, optimizer, engine = single_weight_model("o2", static_loss_scale=256.0, **how)
    expected = weight_after(20, single[0], single[2])
    assert weight_after(20, half[0], half[2]) == 1.0
    rounded = weight_after(20, model, engine)
    assert float(optimizer.state_dict()["masters"][0]) == expected, "bit-identical to float32"
    assert 1 - expected > 2**-11
    assert rounded == float(torch.tensor(expected).half()) != 1.0


def test_momentum_of_master_weights_exists_before_the_first_step() -> None:
    _, optimizer, _ = single_weight_model("o2")
    (master,) = optimizer.param_groups[0]["params"]
    assert master.dtype == optimizer.state[master]["momentum_buffer"].dtype == torch.float32
    assert float(optimizer.state[master]["momentum_buffer"]) == 0


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_and_adamw_update_master_weights(name: str) -> None:
    live = session(world_of_one(), config(precision="o2", optimizer=name, lr=0.01))
    live.train(12)
    losses = [float(loss) for loss in live._loss_tracker._losses]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_cleared_after_the_update(set_to_none: bool) -> None:
    model, optimizer, engine = single_weight_model("o2", static_loss_scale=256.0, set_to_none=set_to_none)
    weight_after(1, model, engine)
    for weight in (next(model.parameters()), optimizer.param_groups[0]["params"][0]):
        assert weight.grad is None if set_to_none else float(weight.grad) == 0


# Loss scale


@contextmanager
def overflowing(live: Session) -> Iterator[None]:
    """Make the gradients of the first parameter infinite, but not the loss."""
    hook = next(live.model.parameters()).register_hook(lambda gradient: gradient * math.inf)
    yield
    hook.remove()


def state_of(live: Session) -> list[torch.Tensor]:
    """Copies of parameters, master weights and optimizer state."""
    state = live._optimizer.state_dict()
    moments = [each for of in state["state"].values() for each in of.values() if isinstance(each, torch.Tensor)]
    return [each.detach().clone() for each in (*live.model.parameters(), *state.get("masters", []), *moments)]


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("name", "implementation"),
    [*itertools.product(("amp-fp16", "o2", "fp16"), IMPLEMENTATIONS), ("amp-fp16", "triton"), ("o2", "triton")],
)
def test_static_loss_scale_is_constant_and_overflow_skips_the_update(name: str, implementation: str) -> None:
    live = session(world_of_one(), config(precision=name, optimizer_impl=implementation, static_loss_scale=256.0))
    live.train(1)
    live.engine.load_scaler_state({**live.engine.scaler_state(), "growth_interval": 1})  # a dynamic scale would double every step
    before = state_of(live)
    with overflowing(live):
        live.train(1)
    assert live.loss_scale() == 256
    assert same(before, state_of(live))
    assert live._loss_tracker.finish(live.loss_scale(), 0, 1).skipped_steps == [0]
    live.train(3)
    assert live.loss_scale() == 256
    numerics = live._loss_tracker.finish(live.loss_scale(), 0, 1)
    assert (numerics.skipped_steps, numerics.nonfinite_step) == ([], None)
    assert not same(before, state_of(live))


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "triton"])
def test_dynamic_loss_scale_halves_until_it_fits(implementation: str) -> None:
    live = session(world_of_one(), config(precision="o2", optimizer_impl=implementation))
    live.engine.load_scaler_state({**live.engine.scaler_state(), "scale": 2.0**40, "growth_interval": 1000})
    start = state_of(live)
    live.train(40)
    skipped = live._loss_tracker.finish(None, 0, 1).skipped_steps
    assert skipped == list(range(len(skipped)))
    assert 20 < len(skipped) < 40, "only initial steps are skipped"
    settled = live.loss_scale()
    assert settled == 2.0 ** (40 - len(skipped))
    assert all(bool(torch.isfinite(each).all()) for each in state_of(live)), "master weights survive a skipped first update"
    assert not same(start, state_of(live))
    live.engine.load_scaler_state({**live.engine.scaler_state(), "scale": 64.0, "growth_interval": 2, "_growth_tracker": 0})
    live.train(4)
    assert live.loss_scale() == 256


@pytest.mark.parametrize("name", ["torch-default", "fp32", "amp-bf16", "bf16"])
def test_static_loss_scale_has_no_effect_without_loss_scaling(name: str) -> None:
    plain, scaled = (session(world_of_one(), config(precision=name, static_loss_scale=scale)) for scale in (None, 256.0))
    for live in (plain, scaled):
        live.train(3)
    assert scaled.loss_scale() is None
    assert same(state_of(plain), state_of(scaled))


# Parking and several ranks


@pytest.mark.parametrize("asked", [{"precision": "o2"}, {"precision": "o2", "static_loss_scale": 128.0, "optimizer": "adam"}])
def test_master_weights_and_loss_scale_survive_parking(asked: dict[str, Any]) -> None:
    """Master weights have more precision than the parameters, so continuing from the parameters alone would differ."""
    world, settled = world_of_one(), config(lr=0.003, **asked)
    through, apart = session(world, settled), session(world, settled)
    through.train(12)
    apart.train(5)
    parked = apart.close()
    again = session(world, settled, parked=parked)
    assert any(not torch.equal(master, master.half().float()) for master in parked.optimizer["masters"])
    again.train(7)
    assert again.loss_scale() == through.loss_scale()
    assert parameter_checksum(again.model.parameters()) == parameter_checksum(through.model.parameters())
    assert same(state_of(again), state_of(through))


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_parked_half_precision_training_continues_identically(name: str) -> None:
    world, settled = world_of_one(), config(precision=name)
    through, apart = session(world, settled), session(world, settled)
    through.train(6)
    apart.train(3)
    again = session(world, settled, parked=apart.close())
    again.train(3)
    assert same(state_of(again), state_of(through))


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_ranks_with_different_initial_weights_end_in_sync(launch: Callable[..., Any]) -> None:
    done = launch([*TORCHRUN[:-2], str(SUPPORT / "precision_states.py"), "o2", "fp16", "bf16"])
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert list(ended) == ["o2", "fp16", "bf16"]
    for name, (first, second) in ended.items():
        assert first["parameters"] == second["parameters"], name
        assert first["masters"] == second["masters"], name
        assert first["losses"] != second["losses"], "each rank has different data"
        assert first["losses"][-1] < first["losses"][0], name
    assert ended["o2"][0]["masters"]


# Rejections and checks


@pytest.mark.parametrize(
    ("name", "static", "reason"),
    [
        ("o2", None, "needs a float32 model, but --precision o2 has a float16 model"),
        ("fp16", None, "has a float16 model"),
        ("bf16", None, "has a bfloat16 model"),
        ("amp-fp16", 256.0, "no static loss scale"),
    ],
)
def test_accelerate_rejects_unsupported_precisions(name: str, static: float | None, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        check_precision_supported(PRECISIONS[name], world_of_one().device, "accelerate", static)
    assert "\n" not in refused.value.message
    assert refused.value.hint.startswith("use --engine ddp")


def test_accelerate_accepts_an_unused_static_loss_scale() -> None:
    check_precision_supported(PRECISIONS["fp32"], world_of_one().device, "accelerate", 256.0)


def a_record(name: str, attestation: ObservedPrecision, static: float | None = None, scales: float | None = None) -> Record:
    numerics = records.numerics(loss_scale=scales)
    settled = msgspec.structs.replace(records.RESNET50, precision=name, static_loss_scale=static)
    return records.record(config=settled, observed_precision=attestation, traces={0: {"numerics": numerics}})


def mismatch(record: Record) -> PrecisionMismatch | None:
    return next((check for check in run_checks(record) if isinstance(check, PrecisionMismatch)), None)


MISMATCHES = [
    ("o2", {"master_weight_dtype": ""}, {"master_weights": False}),
    (
        "o2",
        {"batch_norm_dtypes": ["float16"], "parameter_dtypes": ["float16"], "gradient_dtypes": ["float16"]},
        {"batch_norm_dtypes": ["float16"]},
    ),
    ("o2", {"first_layer_dtype": "float32"}, {"layer_dtypes": ["float32"]}),
    ("o2", {"parameter_dtypes": ["bfloat16"]}, {"parameter_dtypes": ["bfloat16"]}),
    ("o2", {"loss_scale": None}, {"loss_scaler": False}),
    ("fp16", {"loss_scale": 65536.0}, {"loss_scaler": True}),
    (
        "fp16",
        {"parameter_dtypes": ["float32"], "gradient_dtypes": ["float32"]},
        {"parameter_dtypes": ["float32"], "gradient_dtypes": ["float32"]},
    ),
    ("bf16", {"last_layer_dtype": "float16"}, {"layer_dtypes": ["float16"]}),
    ("fp16", {"master_weight_dtype": "float32"}, {"master_weights": True}),
    ("amp-bf16", {"parameter_dtypes": ["bfloat16"]}, {"parameter_dtypes": ["bfloat16"]}),
]


@pytest.mark.parametrize("name", PRECISIONS)
def test_matching_precision_has_no_check(name: str) -> None:
    assert mismatch(a_record(name, records.matching_precision(name))) is None


@pytest.mark.parametrize(("name", "changes", "found"), MISMATCHES)
def test_precision_mismatch_is_an_error(name: str, changes: dict[str, Any], found: dict[str, Any]) -> None:
    seen = msgspec.structs.replace(records.matching_precision(name), **changes)
    assert mismatch(a_record(name, seen)) == PrecisionMismatch(severity="error", **found)


@pytest.mark.parametrize("name", ["amp-fp16", "o2", "fp16"])
def test_changed_static_loss_scale_is_an_error(name: str) -> None:
    seen = msgspec.structs.replace(records.matching_precision(name), loss_scale=256.0)
    assert mismatch(a_record(name, seen, static=256.0, scales=256.0)) is None
    moved = mismatch(a_record(name, seen, static=256.0, scales=512.0))
    assert moved == PrecisionMismatch(severity="error", loss_scales=[512.0], requested_loss_scale=256.0)


def test_unused_static_loss_scale_is_info() -> None:
    unused = a_record("fp32", records.matching_precision("fp32"), static=256.0)
    assert UnusedLossScale(severity="info", loss_scale=256.0) in run_checks(unused)
    seen = msgspec.structs.replace(records.matching_precision("o2"), loss_scale=256.0)
    assert run_checks(a_record("o2", seen, static=256.0)) == []


# On a GPU


@pytest.mark.cuda
@pytest.mark.parametrize("asked", [{"precision": "o2"}, {"precision": "o2", "static_loss_scale": 256.0}, {"precision": "fp16"}])
def test_training_step_does_not_synchronize_with_the_gpu(asked: dict[str, Any]) -> None:
    live = session(world_of_one("cuda"), config("cuda", **asked))
    live.train(3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        live.train(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_parked_training_continues_on_gpu() -> None:
    world, settled = world_of_one("cuda"), config("cuda", precision="o2", lr=0.003)
    apart = session(world, settled)
    apart.train(5)
    before = [each.cpu() for each in state_of(apart)]
    again = session(world, settled, parked=apart.close())
    assert same(before, [each.cpu() for each in state_of(again)])
