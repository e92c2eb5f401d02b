"""Cures of computing: what each sets inside of a window, and that nothing of it is left afterwards."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ddpbench.machine.fingerprint import emulates_bfloat16
from ddpbench.record.screening import CHANGES_NUMBERS, CureCode, Obstacle
from ddpbench.script.cures import memory_format
from ddpbench.script.cures.catalog import CURES, obstacle
from ddpbench.script.cures.cure import Training

CPU = torch.device("cpu")
CODES = list(CURES)


def convolutions() -> nn.Module:
    """With a kernel of one pixel and one of a single channel, whose strides fit both orders."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(64, 5)
    )


def shared() -> nn.Module:
    layer = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Flatten(), nn.Linear(192, 5))


def parametrized() -> nn.Module:
    model = convolutions()
    nn.utils.parametrizations.weight_norm(model[0])
    return model


def frozen() -> nn.Module:
    model = convolutions()
    model[0].requires_grad_(False)
    return model


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 5))


class Loop:
    """A training on a CPU, whose ``step`` is one update."""

    def __init__(self, model: nn.Module, optimizer: Callable[..., Optimizer], scaled: bool = False, set_to_none: bool = True) -> None:
        torch.manual_seed(0)
        self.model, self.set_to_none = model, set_to_none
        self.optimizer = optimizer(each for each in model.parameters() if each.requires_grad)
        self.scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=4.0, enabled=scaled)
        self.images, self.labels = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))

    @property
    def training(self) -> Training:
        scaled = [self.optimizer] if self.scaler.is_enabled() else []
        return Training(models=[self.model], optimizers=[self.optimizer], device=self.images.device, scaled=scaled)

    def step(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        outputs = self.model(self.images)
        loss = nn.functional.cross_entropy(outputs, self.labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return outputs


def with_hooks() -> Loop:
    loop = Loop(convolutions(), lambda parameters: SGD(parameters, 0.1, momentum=0.9))
    loop.model[0].weight.register_hook(lambda gradient: gradient)
    loop.model.register_forward_hook(lambda *_: None)
    return loop


LOOPS: dict[str, Callable[[], Loop]] = {
    "sgd": lambda: Loop(convolutions(), lambda parameters: SGD(parameters, 0.1)),
    "momentum": lambda: Loop(convolutions(), lambda parameters: SGD(parameters, 0.1, momentum=0.9)),
    "adam": lambda: Loop(convolutions(), lambda parameters: Adam(parameters, amsgrad=True)),
    "adamw, a loop over parameters": lambda: Loop(convolutions(), lambda parameters: AdamW(parameters, foreach=False)),
    "adagrad": lambda: Loop(convolutions(), Adagrad),
    "already fused": lambda: Loop(convolutions(), lambda parameters: AdamW(parameters, fused=True)),
    "scaled": lambda: Loop(convolutions(), AdamW, scaled=True),
    "kept gradients": lambda: Loop(convolutions(), AdamW, set_to_none=False),
    "shared parameters": lambda: Loop(shared(), AdamW),
    "parametrized": lambda: Loop(parametrized(), AdamW),
    "frozen": lambda: Loop(frozen(), AdamW),
    "linear": lambda: Loop(linear(), AdamW),
    "hooks": with_hooks,
}


def state_of(loop: Loop) -> dict[str, Any]:
    """All that a cure may change, without values."""
    model, optimizer = loop.model, loop.optimizer
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found: dict[str, Any] = {f"{name} {id(each)}": (each.stride(), each.dtype, each.device) for name, each in tensors.items()}
    found |= {f"{name}.grad": each.grad.stride() if each.grad is not None else None for name, each in model.named_parameters()}
    for index, parameter in enumerate(each for group in optimizer.param_groups for each in group["params"]):
        for name, value in optimizer.state[parameter].items():
            found[f"state {index} {name}"] = (value.stride(), value.device, value.dtype) if isinstance(value, Tensor) else type(value)
    found["groups"] = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    found["attributes"] = {name: value for name, value in vars(optimizer).items() if name not in ("state", "param_groups")}
    found["modules"] = {name: (sorted(vars(each)), type(each), *map(len, hooks(each))) for name, each in model.named_modules()}
    products = [getattr(each.matmul, "fp32_precision", None) for each in (torch.backends.cuda, torch.backends.mkldnn)]
    found["flags"] = (torch.get_float32_matmul_precision(), *products, torch.backends.cudnn.benchmark, torch.is_autocast_enabled("cpu"))
    return found


def hooks(module: nn.Module) -> tuple[Any, ...]:
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_left_of_a_cure(name: str, code: CureCode) -> None:
    loop = LOOPS[name]()
    loop.step()
    before = copy.copy(state_of(loop))
    if obstacle(code, loop.training) is None:
        with CURES[code].switched_on(loop.training):
            loop.step()
    assert state_of(loop) == before
    loop.step()
    assert state_of(loop) == before


def test_nothing_is_left_of_cures_on_top_of_each_other() -> None:
    loop, plain = LOOPS["momentum"](), LOOPS["momentum"]()
    loop.step()
    plain.step()
    before = state_of(loop)
    with CURES["channels-last"].switched_on(loop.training), CURES["fused-optimizer"].switched_on(loop.training):
        loop.step()
    plain.step()
    assert state_of(loop) == before
    assert distance(loop, plain) < 1e-5


@pytest.mark.cuda
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_left_of_a_cure_on_a_gpu(name: str, code: CureCode) -> None:
    with torch.device("cuda"):
        test_nothing_is_left_of_a_cure(name, code)


@pytest.mark.cuda
def test_tf32_is_for_products_alone() -> None:
    with torch.device("cuda"):
        loop = LOOPS["linear"]()
        convolutions = torch.backends.cudnn.allow_tf32
        with CURES["tf32-products"].switched_on(loop.training):
            assert torch.backends.cuda.matmul.allow_tf32
            assert torch.backends.cudnn.allow_tf32 == convolutions
        assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("code", CODES)
def test_nothing_is_left_of_a_cure_that_is_switched_on_before_the_first_step(code: CureCode) -> None:
    loop, plain = LOOPS["adam"](), LOOPS["adam"]()
    with CURES[code].switched_on(loop.training):
        loop.step()
    plain.step()
    own, others = ({name: value for name, value in state_of(each).items() if name.startswith("state")} for each in (loop, plain))
    assert own == others


@pytest.mark.parametrize("code", CODES)
def test_nothing_is_left_of_a_cure_after_an_error(code: CureCode) -> None:
    loop = LOOPS["adam"]()
    loop.step()
    before = state_of(loop)
    loop.labels = loop.labels[:1]
    with pytest.raises(ValueError, match="batch_size"), CURES[code].switched_on(loop.training):
        loop.step()  # the optimizer has no gradients
    before = {name: value for name, value in before.items() if not name.endswith(".grad")}
    after = {name: value for name, value in state_of(loop).items() if not name.endswith(".grad")}
    assert after == before


@pytest.mark.parametrize("code", [each for each in CODES if each not in CHANGES_NUMBERS])
def test_cure_that_only_rounds_trains_as_without_it(code: CureCode) -> None:
    loop, plain = LOOPS["sgd"](), LOOPS["sgd"]()
    for _ in range(2):
        with CURES[code].switched_on(loop.training):
            loop.step()
        loop.step()
        plain.step()
        plain.step()
    for own, other in zip(loop.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


# what is on inside


def test_channels_last_is_what_the_line_in_a_script_makes() -> None:
    loop = LOOPS["momentum"]()
    edited = Loop(convolutions().to(memory_format=torch.channels_last), lambda parameters: SGD(parameters, 0.1, momentum=0.9))
    loop.step()
    with CURES["channels-last"].switched_on(loop.training):
        loop.step()
        edited.step()
        assert_same_strides(loop, edited)


def assert_same_strides(loop: Loop, edited: Loop) -> None:
    for own, other in zip(loop.model.parameters(), edited.model.parameters(), strict=True):
        assert own.stride() == other.stride()
        assert own.grad is not None
        assert other.grad is not None
        assert own.grad.stride() == other.grad.stride()
        assert loop.optimizer.state[own]["momentum_buffer"].stride() == edited.optimizer.state[other]["momentum_buffer"].stride()


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, Adagrad])
def test_fused_optimizer_is_what_its_argument_makes(kind: type[Any]) -> None:
    loop, edited = (Loop(linear(), lambda parameters, each=fused: kind(parameters, lr=0.1, **each)) for fused in ({}, {"fused": True}))
    loop.step()
    with CURES["fused-optimizer"].switched_on(loop.training):
        loop.step()
        edited.step()
        for own, other in ((loop.optimizer, edited.optimizer),):
            assert [{**group, "params": None} for group in own.param_groups] == [{**group, "params": None} for group in other.param_groups]
            assert set(vars(own)) == set(vars(other))
            assert getattr(own, "_step_supports_amp_scaling", None) == getattr(other, "_step_supports_amp_scaling", None) is True


def test_scaler_leaves_unscaling_to_a_fused_optimizer() -> None:
    loop = LOOPS["scaled"]()
    loop.step()
    unscaled = []
    loop.scaler.unscale_ = unscaled.append  # type: ignore[method-assign, assignment]
    with CURES["fused-optimizer"].switched_on(loop.training):
        loop.step()
    assert not unscaled
    assert not torch.stack([each.isnan().any() for each in loop.model.parameters()]).any()


@pytest.mark.skipif(emulates_bfloat16(), reason="no bfloat16 on this CPU")
def test_autocast_is_around_the_forward_only() -> None:
    loop = LOOPS["adam"]()
    with CURES["bf16-autocast"].switched_on(loop.training):
        assert loop.step().dtype == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
    assert loop.step().dtype == torch.float32


def test_copy_that_is_made_meanwhile_computes_as_before() -> None:
    loop = LOOPS["adam"]()
    with CURES["bf16-autocast"].switched_on(loop.training):
        copied = copy.deepcopy(loop.model)
        pickle.dumps(loop.model)
        assert copied(loop.images).dtype == torch.float32


def test_weights_keep_their_memory() -> None:
    loop = LOOPS["adam"]()
    alias = loop.model[0].weight.detach()
    with CURES["channels-last"].switched_on(loop.training):
        loop.step()
    assert torch.equal(alias, loop.model[0].weight)
    assert alias.data_ptr() == loop.model[0].weight.data_ptr()


# why a cure is not tried


def resumed(before: Loop, after: Loop) -> Loop:
    """``after``, with the checkpoint of ``before``."""
    checkpoint = copy.deepcopy((before.model.state_dict(), before.optimizer.state_dict()))
    after.model.load_state_dict(checkpoint[0])
    after.optimizer.load_state_dict(checkpoint[1])
    return after


def distance(loop: Loop, other: Loop) -> float:
    """The largest difference between two weights."""
    return max((own - each).abs().max().item() for own, each in zip(loop.model.parameters(), other.model.parameters(), strict=True))


@pytest.mark.parametrize(("fused", "is_misread"), [(False, False), (True, True)])
def test_fused_optimizer_misreads_an_older_checkpoint_of_a_model_in_another_memory_format(fused: bool, is_misread: bool) -> None:
    """The reason for ``fused-moments``, and for the lines of a diff with both: once torch reads it right, neither is needed."""

    def loop(channels_last: bool, **options: bool) -> Loop:
        model = convolutions().to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        return Loop(model, lambda parameters: SGD(parameters, 0.1, momentum=0.9, **options))

    older = loop(channels_last=False)
    older.step()
    edited = loop(channels_last=True, fused=fused)
    edited.optimizer.register_load_state_dict_pre_hook(
        lambda _, state: [each.update(fused=fused) for each in state["param_groups"]] and None
    )
    edited = resumed(older, edited)
    older.step()
    edited.step()
    assert (distance(older, edited) > 1e-3) is is_misread


def test_scaler_fails_after_an_older_checkpoint_was_loaded_into_a_fused_optimizer() -> None:
    """The reason why the lines of a diff keep an optimizer fused."""
    older = LOOPS["scaled"]()
    older.step()
    edited = Loop(convolutions(), lambda parameters: AdamW(parameters, fused=True), scaled=True)
    with pytest.raises(AssertionError, match="grad_scale"):
        resumed(older, edited).step()


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_optimizer_that_is_kept_fused_trains_on_under_a_scaler_from_an_older_checkpoint(kind: type[Optimizer]) -> None:
    older = Loop(convolutions(), kind, scaled=True)
    older.step()
    edited = Loop(convolutions(), lambda parameters: kind(parameters, fused=True), scaled=True)  # type: ignore[call-arg]
    edited.optimizer.register_load_state_dict_pre_hook(
        lambda _, state: [each.update(fused=True) for each in state["param_groups"]] and None
    )
    edited = resumed(older, edited)
    for _ in range(200):
        outputs, plain = edited.step(), older.step()
    assert nn.functional.cross_entropy(outputs, older.labels) < 0.1
    torch.testing.assert_close(outputs, plain, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("code", ["channels-last", "fused-optimizer"])
def test_edited_script_resumes_an_older_checkpoint_and_learns(code: CureCode) -> None:
    """Losses of 200 steps are those of the script as it is, but for rounding."""
    older = LOOPS["sgd"]()
    older.step()
    edited = {
        "channels-last": lambda: Loop(convolutions().to(memory_format=torch.channels_last), lambda each: SGD(each, 0.1)),
        "fused-optimizer": lambda: Loop(convolutions(), lambda each: SGD(each, 0.1, fused=True)),
    }[code]()
    edited = resumed(older, edited)
    for _ in range(200):
        outputs, plain = edited.step(), older.step()
    assert nn.functional.cross_entropy(outputs, older.labels) < 0.1
    torch.testing.assert_close(outputs, plain, rtol=0.05, atol=0.05)


# obstacles


def replaced(loop: Loop, **changes: Any) -> Training:
    return Training(**{**vars(loop.training), **changes})


def with_flat_weights() -> Training:
    loop = LOOPS["adam"]()
    weight = loop.model[0].weight
    weight.data = torch.zeros(weight.numel() + 1)[1:].view_as(weight)
    return loop.training


def with_shared_memory() -> Training:
    loop = LOOPS["adam"]()
    loop.model.share_memory()
    return loop.training


def compiled() -> Training:
    loop = LOOPS["adam"]()
    loop.model.compile()
    return loop.training


def sparse() -> Training:
    model = nn.EmbeddingBag(4, 4, sparse=True)
    model(torch.tensor([[0, 1]])).sum().backward()
    return Training(models=[model], optimizers=[SGD(model.parameters(), 0.1)], device=CPU)


class OwnAdam(Adam):
    pass


GPU = torch.device("cuda")


def deterministic() -> Training:
    torch.use_deterministic_algorithms(True)
    return replaced(LOOPS["adam"](), device=GPU)


OBSTACLES: list[tuple[str, Callable[[], Training], CureCode, Obstacle | None]] = [
    ("plain", lambda: LOOPS["adam"]().training, "channels-last", None),
    ("plain", lambda: LOOPS["adam"]().training, "fused-optimizer", None),
    ("linear", lambda: LOOPS["linear"]().training, "channels-last", "no-convolutions"),
    ("volumes", lambda: Loop(nn.Sequential(nn.Conv3d(3, 3, 1), convolutions()), Adam).training, "channels-last", "volumes"),
    ("channels-last", lambda: Loop(convolutions().to(memory_format=torch.channels_last), Adam).training, "channels-last", "already-on"),
    ("flat", with_flat_weights, "channels-last", "other-memory"),
    ("shared memory", with_shared_memory, "channels-last", "other-memory"),
    ("own optimizer", lambda: Loop(convolutions(), OwnAdam).training, "fused-optimizer", "other-optimizer"),
    ("own optimizer", lambda: Loop(convolutions(), OwnAdam).training, "channels-last", "other-optimizer"),
    ("RMSprop", lambda: Loop(convolutions(), RMSprop).training, "fused-optimizer", "other-optimizer"),
    ("RMSprop", lambda: Loop(convolutions(), RMSprop).training, "channels-last", None),
    ("fused", lambda: LOOPS["already fused"]().training, "fused-optimizer", "already-on"),
    ("foreach", lambda: Loop(linear(), lambda each: Adam(each, foreach=True)).training, "fused-optimizer", "own-implementation"),
    ("scaled", lambda: LOOPS["scaled"]().training, "fused-optimizer", None),
    ("scaled SGD", lambda: Loop(convolutions(), SGD, scaled=True).training, "fused-optimizer", "loss-scaler"),
    ("scaled", lambda: LOOPS["scaled"]().training, "channels-last", None),
    ("fused", lambda: LOOPS["already fused"]().training, "channels-last", "fused-moments"),
    ("compiled", compiled, "channels-last", "compiled"),
    ("compiled", compiled, "bf16-autocast", "compiled"),
    ("compiled", compiled, "fused-optimizer", None),
    ("replicated", lambda: Loop(nn.DataParallel(linear()), Adam).training, "bf16-autocast", "replicated"),
    ("half", lambda: Loop(linear().bfloat16(), Adam).training, "bf16-autocast", "other-precision"),
    ("autocast", lambda: replaced(LOOPS["adam"](), precision="amp-bf16"), "bf16-autocast", "other-precision"),
    ("sparse", sparse, "fused-optimizer", "sparse-gradients"),
    ("graphs", lambda: replaced(LOOPS["adam"](), replays_graphs=True), "null", "captured"),
    ("freed", lambda: replaced(LOOPS["adam"](), models=[]), "null", "no-model"),
    ("compiled", lambda: replaced(LOOPS["adam"](), models=compiled().models, device=GPU), "fused-kernels", "compiled"),
    ("linear", lambda: replaced(LOOPS["linear"](), device=GPU), "fused-kernels", "nothing-to-fuse"),
    ("gradient penalty", lambda: replaced(LOOPS["adam"](), device=GPU, differentiates_twice=True), "fused-kernels", "second-derivatives"),
    ("deterministic", deterministic, "fused-kernels", "deterministic"),
    ("CPU", lambda: LOOPS["adam"]().training, "fused-kernels", "no-device-kernel"),
    ("CPU", lambda: LOOPS["adam"]().training, "tf32-products", "no-tf32"),
    ("adagrad on a GPU", lambda: replaced(LOOPS["adagrad"](), device=GPU), "fused-optimizer", "no-device-kernel"),
    ("many", lambda: replaced(LOOPS["adam"](), has_more_optimizers=True), "fused-optimizer", "many-optimizers"),
]


@pytest.mark.parametrize(
    ("training", "code", "expected"), [each[1:] for each in OBSTACLES], ids=[f"{each[0]}, {each[2]}" for each in OBSTACLES]
)
def test_cure_is_not_tried_where_it_may_harm(training: Callable[[], Training], code: CureCode, expected: Obstacle | None) -> None:
    try:
        assert obstacle(code, training()) == expected
    finally:
        torch.use_deterministic_algorithms(False)


def test_sharded_weights_and_flat_buffers_keep_their_memory_format_and_their_optimizer() -> None:
    with single_rank():
        zero = Loop(DistributedDataParallel(convolutions()), flat_zero)
        sharded = Loop(fully_shard(convolutions(), mesh=init_device_mesh("cpu", (1,))), Adam)
        for loop, expected in ((zero, ("other-optimizer", "other-memory")), (sharded, ("other-memory", "other-optimizer"))):
            loop.step()
            for code in ("channels-last", "fused-optimizer"):
                assert obstacle(code, loop.training) in expected
            before = state_of(loop)
            if obstacle("bf16-autocast", loop.training) is None:
                with CURES["bf16-autocast"].switched_on(loop.training):
                    loop.step()
            assert state_of(loop) == before


def flat_zero(parameters: Iterator[nn.Parameter]) -> Optimizer:
    return ZeroRedundancyOptimizer(parameters, Adam, parameters_as_bucket_view=True)


@contextmanager
def single_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("bucket_views", [False, True])
@pytest.mark.parametrize("code", CODES)
def test_nothing_is_left_of_a_cure_in_a_model_that_ddp_has_wrapped(code: CureCode, bucket_views: bool) -> None:
    with single_rank():
        loop = Loop(DistributedDataParallel(convolutions(), gradient_as_bucket_view=bucket_views), AdamW)
        for _ in range(3):
            loop.step()
        before, found = state_of(loop), obstacle(code, loop.training)
        assert (found == "bucket-views") == (bucket_views and code == "fused-optimizer")
        if found is None:
            with CURES[code].switched_on(loop.training):
                loop.step()
                loop.step()
        loop.step()
        assert state_of(loop) == before


def test_memory_format_needs_room_for_a_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = LOOPS["momentum"]()
    loop.step()
    convolutions_bytes = sum(each.nbytes for each in loop.model.parameters() if each.dim() == 4)  # and gradients, and momentum
    for free, expected in ((6 * convolutions_bytes, None), (6 * convolutions_bytes - 1, "no-memory")):
        monkeypatch.setattr(memory_format, "free_bytes", lambda _, free=free: free)
        assert obstacle("channels-last", loop.training) == expected
