"""The models of a script are found and timed, and not changed."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from residual_net import Net
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.modules import module as hooks
from watched import BATCH, FEATURES, Training, loader, watched

from ddpbench.kernels.fusion import count_fusable_norms
from ddpbench.machine.rank_env import from_env
from ddpbench.machine.step_timer import BACKWARD, FORWARD, HOST_TO_DEVICE, SYNC
from ddpbench.script.cures.catalog import obstacle
from ddpbench.script.observe.models import model_name, outermost_models
from ddpbench.script.observe.rows import FIRST_PHASE
from ddpbench.script.ranks.observation import Observation


def test_outermost_model_is_found_by_a_parameter() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    outer = nn.ModuleDict({"inner": inner})
    other = copy.deepcopy(outer)
    assert outermost_models(inner[0].weight) == [outer]
    assert outermost_models(other["inner"][0].bias) == [other]
    assert outermost_models(nn.Parameter(torch.zeros(1))) == []


def test_all_models_that_share_a_parameter_are_found() -> None:
    one, two = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    two[0].weight = one.weight
    assert {id(each) for each in outermost_models(one.weight)} == {id(one), id(two)}


def test_search_for_a_model_does_not_break_the_tuples_that_another_thread_makes() -> None:
    model, is_over = nn.Linear(2, 2), threading.Event()
    ballast: list[list[object]] = [[] for _ in range(300_000)]  # so that a search takes long enough for a switch of threads

    def make_tuples() -> str:
        try:
            while not is_over.is_set():
                tuple(number for number in range(100_000))  # grows as it is made
        except SystemError as problem:
            return str(problem)
        return ""

    with ThreadPoolExecutor(1) as pool:
        problem = pool.submit(make_tuples)
        found = [outermost_models(model.weight) for _ in range(10)]
        is_over.set()
    assert (problem.result(), found) == ("", [[model]] * 10)
    del ballast


class Parts(nn.Module):
    """Never called itself, as a LightningModule is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, 8), nn.Linear(8, 4)])
        self.loss = nn.CrossEntropyLoss()


def test_models_are_known_as_long_as_they_exist_and_the_order_of_their_weights() -> None:
    orders = []
    for order in (torch.contiguous_format, torch.channels_last):
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten()).to(memory_format=order)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with watched() as seen:
            for x, _ in loader(4):
                model(x.view(BATCH, 1, 2, FEATURES // 2)).sum().backward()
                optimizer.step()
        orders.append(seen.hooks.models.channels_last)
        assert [id(each) for each in seen.hooks.models.found] == [id(model)]
        del model, optimizer
        gc.collect()
        assert seen.hooks.models.found == []
    assert orders == [False, True]


class Talking(Net):
    """Prints the shapes of its inputs, as some do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("images", tuple(x.shape) if type(x) is torch.Tensor else x)
        return super().forward(x)


@pytest.mark.parametrize("how", ["eager", "compiled", "grad-of-grad", "backward-of-backward"])
def test_fused_kernels_are_not_tried_where_they_cannot_run(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = Talking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched() as seen:
        for _ in loader(4):
            loss = model(torch.randn(2, 3, 8, 8)).sum()
            if how == "grad-of-grad":
                torch.autograd.grad(loss, list(model.parameters()), None, True, True)
            loss.backward(create_graph=how == "backward-of-backward")
            optimizer.step()
        if how == "compiled":
            model.compile()  # the calls that follow
        capsys.readouterr()
        observation = Observation("train.py", from_env(), seen.observer, seen.hooks)
        with observation.observer.paused():
            found = obstacle("fused-kernels", replace(observation.training, device=torch.device("cuda")))
    assert found == {"eager": None, "compiled": "compiled"}.get(how, "second-derivatives")
    assert capsys.readouterr().out == "", "its forward is traced without values, and what it prints is not seen"


class FlatParts(nn.Module):
    """Never called itself; its parts are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.bn(self.conv(x)))


def test_parts_whose_calls_are_timed_are_traced_as_before() -> None:
    model = FlatParts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched():
        for x, _ in loader(4):
            model.forward(x.view(BATCH, 1, 2, FEATURES // 2)).sum().backward()
            optimizer.step()
        assert "__call__" in vars(nn.BatchNorm2d), "its calls are timed"
        assert count_fusable_norms(model) == 1
    assert "__call__" not in vars(nn.BatchNorm2d)


def test_parts_of_a_model_that_is_never_called_end_the_copies() -> None:
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched() as seen:
        for x, y in loader(8):
            sleep(0.005)
            model.loss(model.layers[1](model.layers[0](x)), y).backward()
            optimizer.step()
    assert seen.hooks.models.name == "Parts"
    assert seen.rows[3:, FIRST_PHASE + HOST_TO_DEVICE].min() >= 5
    assert seen.rows[3:, FIRST_PHASE + FORWARD].max() < 5


def test_wrappers_are_named_with_their_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert model_name(torch.compile(nn.DataParallel(model), backend="eager")) == "OptimizedModule(DataParallel(Sequential))"


def test_copies_and_saved_models_have_no_hooks(tmp_path: Path) -> None:
    training = Training()
    with watched() as seen:
        training.train(loader(4))
        average = copy.deepcopy(training.model)
        torch.save(training.model, tmp_path / "model.pt")
        assert b"ddpbench" not in (tmp_path / "model.pt").read_bytes()
        assert b"ddpbench" not in pickle.dumps(training.model)
        marks = seen.observer.clock.num_marks
        seen.observer.clock.open()
        average(torch.randn(BATCH, FEATURES))
        assert seen.observer.clock.num_marks == 0, "only the call of the watched instance is a mark"
        training.model(torch.randn(BATCH, FEATURES))
        assert seen.observer.clock.num_marks == 2
        assert marks >= 0


def test_observed_precision_is_that_of_autocast() -> None:
    training = Training()
    with watched() as seen:
        for x, _ in loader(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = training.model(x).float().sum()
            loss.backward()
            training.optimizer.step()
    assert seen.hooks.models.precision == "amp-bf16"
    assert seen.hooks.models.num_parameters == sum(each.numel() for each in training.model.parameters())


def test_precision_is_observed_if_the_forward_itself_enters_autocast() -> None:
    training = Training()
    forward = training.model.forward
    training.model.forward = torch.autocast("cpu", torch.bfloat16)(forward)  # type: ignore[method-assign]  # as Accelerate does
    with watched() as seen:
        training.train(loader(4))
        with torch.autocast("cpu", torch.float16, enabled=False):
            training.model(torch.randn(BATCH, FEATURES))
    assert seen.hooks.models.precision == "amp-bf16"


def test_collectives_of_fsdp_count_as_sync() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        training, mesh = Training(), init_device_mesh("cpu", (1,))
        for module in (*training.model, training.model):  # type: ignore[misc]  # a Sequential
            fully_shard(module, mesh=mesh)
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01)
        pre_forward = FSDPParamGroup.pre_forward
        with watched() as seen:
            training.train(loader(8))
    finally:
        dist.destroy_process_group()
    assert (seen.hooks.models.name, seen.hooks.models.engine) == ("FSDPSequential", "fsdp")
    for phase in (FORWARD, BACKWARD, SYNC):
        assert seen.rows[2:, FIRST_PHASE + phase].min() > 0
    assert FSDPParamGroup.pre_forward is pre_forward


def test_compiled_model_is_timed_and_not_compiled_again() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    training = Training()
    training.model = torch.compile(training.model, backend=backend)  # type: ignore[assignment]
    with watched() as seen:
        training.train(loader(8))
    assert len(graphs) == 1
    assert seen.hooks.models.name == "OptimizedModule(Sequential)"
    assert seen.rows[2:, FIRST_PHASE + FORWARD].min() > 0
    assert seen.rows[2:, FIRST_PHASE + HOST_TO_DEVICE].min() > 0


def test_compiled_step_with_the_model_inside_runs_unchanged() -> None:
    training = Training()
    forward = torch.compile(lambda x: training.model(x).sum(), backend="eager", fullgraph=True)
    with watched() as seen:
        for x, _ in loader(6):
            forward(x).backward()
            training.optimizer.step()
    assert len(seen.rows) == 6


class Slow(nn.Module):
    """A teacher that is not trained, or a transform without parameters."""

    def __init__(self, has_parameters: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES) if has_parameters else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sleep(0.003)
        output: torch.Tensor = self.inner(x)
        return output


@pytest.mark.parametrize(("has_parameters", "phase"), [(True, FORWARD), (False, HOST_TO_DEVICE)])
def test_frozen_teacher_computes_and_a_transform_prepares_the_batch(has_parameters: bool, phase: int) -> None:
    training, before = Training(), Slow(has_parameters)
    with watched() as seen:
        for x, _ in loader(12):
            with torch.no_grad():
                before(x)
            training.step((x,))
    late = seen.rows[5:, FIRST_PHASE:]
    assert (late[:, phase] > 3.0).all()
    assert (late[:, FORWARD + HOST_TO_DEVICE - phase] < 3.0).any()
    assert not hooks._global_forward_pre_hooks


@pytest.mark.parametrize(("updates", "expected"), [(8, ["channels-last", "fused-optimizer"]), (3, [])])
def test_settings_to_try_are_looked_for_once_all_that_trains_was_seen(updates: int, expected: list[str]) -> None:
    model = FlatParts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched() as seen:
        observation = Observation("train.py", from_env(), seen.observer, seen.hooks)
        for x, _ in loader(updates):
            model(x.view(BATCH, 1, 2, FEATURES // 2)).sum().backward()
            optimizer.step()
        script = observation.own_record().script
    assert script is not None
    assert [each for each in script.settings_to_try if each != "bf16-autocast"] == expected
