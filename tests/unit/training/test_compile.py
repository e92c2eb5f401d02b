"""Every ``--compile`` mode trains like eager, with TF32 off and on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from training import BATCH, CLASSES, config, session, world_of_one

from ddpbench.machine.backends import get_tf32, set_tf32
from ddpbench.record.config import Config
from ddpbench.record.flags import flag_fields
from ddpbench.record.record import ObservedPrecision
from ddpbench.training.compile import compile_model
from ddpbench.training.warmup import warm_up

MODES = [mode for field in flag_fields(Config) if field.name == "compile" for mode in field.choices if mode != "off"]

TOLERANCE = {"fp32": 1e-4, "torch-default": 1e-2, "tf32": 1e-2, "amp-bf16": 5e-2}
"""Relative difference of the loss from eager after a few steps. TF32 and bfloat16 round to 10 and 7 bits, in different orders."""

STEPS = 6
"""With CUDA graphs: compile, record, replay, in forward and backward."""


@pytest.fixture(autouse=True)
def tf32_as_shipped() -> Iterator[None]:
    yield
    set_tf32(None)


def conv_and_linear_net() -> nn.Module:
    """A net large enough that every layer is autotuned, including a 1x1 convolution."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


@pytest.mark.slow
def test_second_compilation_finds_its_kernels_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    states = []
    for mode in ("off", "default", "default"):
        torch._dynamo.reset()
        live = session(world_of_one(), config(compile=mode, fresh=True), conv_and_linear_net())
        warmup, _, _ = warm_up(live)
        live.close()
        states.append(warmup.compile_cache)
    assert states == [None, "cold", "warm"]


@pytest.fixture
def process_group() -> Iterator[None]:
    """Of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def num_graphs(batch_size: int, *, autocast: bool = False) -> int:
    """Graphs compiled so far, once a new model has run a batch."""
    model = compile_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), config(compile="default", batch_size=batch_size), is_in_ddp=False)
    with torch.autocast("cpu", enabled=autocast):
        model(torch.zeros(batch_size, 4))
    return counters["stats"]["unique_graphs"]


@pytest.mark.slow
def test_compiled_code_is_used_again_and_other_shapes_stay_static() -> None:
    counters.clear()
    assert [num_graphs(8), num_graphs(8), num_graphs(8, autocast=True), num_graphs(8)] == [1, 1, 2, 2]
    assert [num_graphs(16), num_graphs(24)] == [3, 4], "a size that had changed would be dynamic, and fit the next"


@pytest.mark.slow
def test_compiled_code_is_not_shared_between_ddp_and_other_trainings(process_group: None) -> None:
    """In DDP torch compiles one graph per bucket, so that gradient sync overlaps backward."""

    def num_compiled(is_in_ddp: bool) -> int:
        counters.clear()
        layers = [nn.Linear(512, 512) for _ in range(3)]  # 1 MiB each
        model = compile_model(nn.Sequential(*layers), config(compile="default", bucket_cap_mb=1), is_in_ddp)
        trained = DistributedDataParallel(model, bucket_cap_mb=1) if is_in_ddp else model
        trained(torch.zeros(BATCH, 512)).sum().backward()
        return counters["aot_autograd"]["total"]

    whole, split, whole_again = map(num_compiled, (False, True, False))
    assert (whole, whole_again) == (1, 1)
    assert split > 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_closed_training_is_freed_also_if_its_code_stays_compiled(mode: str) -> None:
    live = session(world_of_one(), config(compile=mode, fresh=True), conv_and_linear_net())
    live.train(1)
    weights = [weakref.ref(parameter) for parameter in live.model.parameters()]
    live.close()
    gc.collect()
    assert not any(weight() is not None for weight in weights)


def losses(device: str, mode: str, precision: str) -> tuple[tuple[float | None, float | None], ObservedPrecision]:
    """First and last loss of a short round, and the observed precision of its warm-up of three steps."""
    settled = config(device, precision=precision, compile=mode, fresh=True)
    live = session(world_of_one(device), settled, conv_and_linear_net())
    _, attested, _ = warm_up(live)
    numerics = live.run_round(STEPS, max_drain_s=0).numerics
    live.close()
    assert numerics.nonfinite_step is None
    return (numerics.first_loss, numerics.last_loss), attested


def check_mode(device: str, mode: str, precision: str, tf32_on: tuple[bool, bool]) -> None:
    eager, _ = losses(device, "off", precision)
    found, attested = losses(device, mode, precision)
    assert found == pytest.approx(eager, rel=TOLERANCE[precision])
    assert (attested.tf32_matmul, attested.tf32_cudnn) == tf32_on
    assert (attested.first_layer_dtype, attested.last_layer_dtype) == (("bfloat16",) if precision.startswith("amp") else ("float32",)) * 2


@pytest.mark.parametrize("on", [False, True, None])
def test_tf32_flags_of_both_apis_agree(on: bool | None) -> None:
    """Inductor reads the older flags while it autotunes; torch raises if they disagree with the newer ones."""
    set_tf32(on)
    matmul, cudnn = get_tf32()
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (matmul, cudnn)
    assert torch.get_float32_matmul_precision() == ("high" if matmul else "highest")


def test_tf32_set_by_a_model_is_detected_and_corrected() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert get_tf32()[0]
    set_tf32(False)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("mode", MODES)
def test_compile_mode_keeps_its_options_and_uses_cudnn_convolutions(mode: str) -> None:
    options = compile_model(nn.Linear(2, 2), config(compile=mode), is_in_ddp=False).get_compiler_config()
    assert options["max_autotune_conv_backends"] == "ATEN"
    assert (options["max_autotune"], options["triton.cudagraphs"]) == (mode == "max-autotune", mode in ("reduce-overhead", "max-autotune"))


@pytest.mark.parametrize("combined", [False, True])
def test_combo_kernels_are_an_option_of_the_compiler(combined: bool) -> None:
    settled = config(compile="default", combo_kernels=combined)
    assert compile_model(nn.Linear(2, 2), settled, is_in_ddp=False).get_compiler_config()["combo_kernels"] is combined


@pytest.mark.skipif(not torch.backends.cudnn.is_available(), reason="torch without cuDNN")
def test_cudnn_tries_as_many_algorithms_as_configured() -> None:
    for limit in (0, 10):
        session(world_of_one(), config(cudnn_benchmark_limit=limit), conv_and_linear_net()).close()
        assert torch.backends.cudnn.benchmark_limit == limit


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "precision"), [*((mode, "fp32") for mode in MODES), (MODES[0], "amp-bf16")])
def test_compiled_losses_match_eager(mode: str, precision: str) -> None:
    check_mode("cpu", mode, precision, (precision != "fp32",) * 2)


@pytest.mark.cuda
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("precision", "tf32_on"),
    [("fp32", (False, False)), ("torch-default", (False, True)), ("tf32", (True, True)), ("amp-bf16", (True, True))],
)
@pytest.mark.parametrize("mode", MODES)
def test_compiled_losses_match_eager_on_gpu(mode: str, precision: str, tf32_on: tuple[bool, bool]) -> None:
    check_mode("cuda", mode, precision, tf32_on)


@pytest.mark.cuda
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_closed_training_holds_no_device_memory(mode: str) -> None:
    torch.cuda.init()
    held = torch.cuda.memory_allocated()
    live = session(world_of_one("cuda"), config("cuda", compile=mode, fresh=True), conv_and_linear_net())
    live.train(STEPS)
    live.close()
    del live
    gc.collect()
    assert torch.cuda.memory_allocated() == held
