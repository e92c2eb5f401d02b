"""User-defined workloads: a mistake in the spec or the model is one line with a hint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddpbench.cli import main
from ddpbench.record.errors import UsageError
from ddpbench.workloads.model_cost import workload_cost
from ddpbench.workloads.registry import WORKLOADS, find_workload
from ddpbench.workloads.spec import WorkloadSpec, check_spec


def here(function: Callable[..., Any]) -> str:
    return f"test_user_workloads:{function.__name__}"


def linear(image_size: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(image_size**2, classes))


DIGITS = WorkloadSpec(name="digits", help="", dataset="mnist", image_size=8, classes=10, model=here(linear), batch_cuda=1, batch_cpu=1)
POINTS = replace(DIGITS, name="points", dataset="disc", image_size=None)
NO_SPEC = 1


def digits() -> WorkloadSpec:
    return DIGITS


def without_size() -> WorkloadSpec:
    return replace(DIGITS, image_size=None)


def incomplete() -> WorkloadSpec:
    return WorkloadSpec(name="incomplete")  # type: ignore[call-arg]


@pytest.mark.parametrize("attribute", ["DIGITS", "digits"])
def test_user_defined_workload_is_found(attribute: str) -> None:
    assert find_workload(f"test_user_workloads:{attribute}") is DIGITS


@pytest.mark.parametrize("attribute", ["NO_SPEC", "nothing"])
def test_object_that_is_no_workload_is_rejected(attribute: str) -> None:
    with pytest.raises(UsageError, match=attribute):
        find_workload(f"test_user_workloads:{attribute}")


@pytest.mark.parametrize("name", [*WORKLOADS, "wrn16x4-cifar10", "vgg16-2-cifar10", "disc-mlp-3", "gemm-mlp-8"])
def test_workloads_of_the_package_are_valid(name: str) -> None:
    check_spec(find_workload(name))


@pytest.mark.parametrize(
    ("spec", "fields", "message", "hint"),
    [
        (DIGITS, {"image_size": None}, "the dataset mnist has images, but there is no image_size", "set image_size in the spec"),
        (DIGITS, {"dataset": "minst"}, "unknown dataset 'minst'", "use one of imagenet, cifar10, mnist, disc, gemm"),
        (POINTS, {"image_size": 8}, "the dataset disc has vectors, which have no image_size", "set image_size=None in the spec"),
        (DIGITS, {"loss": "l1"}, "unknown loss 'l1'", "use one of cross-entropy, mse"),
        (DIGITS, {"loss": "mse"}, "the labels of mnist are classes, which do not fit mse", 'set loss="cross-entropy"'),
        (POINTS, {"dataset": "gemm"}, "the labels of gemm are rows of numbers, which do not fit cross-entropy", 'set loss="mse"'),
        (DIGITS, {"sample_unit": "token"}, "unknown sample_unit 'token'", "use one of image, point, row"),
        (DIGITS, {"classes": "10"}, "classes: expected `int`, got `str`", "correct this field of the WorkloadSpec"),
        (DIGITS, {"batch_cpu": 0}, "batch_cpu: expected `int` >= 1", "correct this field of the WorkloadSpec"),
    ],
)
def test_invalid_field_is_rejected_with_a_hint(spec: WorkloadSpec, fields: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_spec(replace(spec, **fields))
    assert (refused.value.message, refused.value.hint) == (f"workload '{spec.name}': {message}", hint)


def test_invalid_workload_ends_the_command_before_ranks_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["test_user_workloads:without_size", "--gpus", "2"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "ddpbench: error: workload 'digits': the dataset mnist has images, but there is no image_size",
        "hint: set image_size in the spec",
    ]


def test_missing_field_is_reported_with_the_line_of_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"'test_user_workloads:incomplete' failed: TypeError: .* 'classes', 'model'") as refused:
        find_workload("test_user_workloads:incomplete")
    assert refused.value.hint.startswith(f"raised in {__file__}:")
    module = tmp_path / "module_with_unknown_field.py"
    module.write_text("from ddpbench.workloads.spec import WorkloadSpec\nSPEC = WorkloadSpec(size=1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"cannot load 'module_with_unknown_field:SPEC': TypeError: .* argument 'size'") as refused:
        find_workload("module_with_unknown_field:SPEC")
    assert refused.value.hint == f"raised in {module}:2"


class Output(nn.Module):
    """Returns what ``change`` makes of the scores of a linear layer."""

    def __init__(self, change: Callable[[Tensor], Any], classes: int = 10) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(64, classes), change

    def forward(self, samples: Tensor) -> Any:
        return self.change(self.layer(samples.flatten(1)))


def twenty_scores(image_size: int, classes: int) -> nn.Module:
    return Output(lambda scores: scores, 20)


def flat_scores(image_size: int, classes: int) -> nn.Module:
    return Output(torch.flatten)


def two_outputs(image_size: int, classes: int) -> nn.Module:
    return Output(lambda scores: (scores, scores))


def misspelled(image_size: int, classes: int) -> nn.Module:
    return Output(lambda scores: scores.sofmax())


def seven_features(image_size: int | None, classes: int) -> nn.Module:
    return nn.Linear(7, classes)


def three_channels(image_size: int, classes: int) -> nn.Module:
    return nn.Conv2d(3, classes, 3)


def one_argument(image_size: int) -> nn.Module:
    return nn.Flatten()


def no_module(image_size: int, classes: int) -> str:
    return "resnet"


@pytest.mark.parametrize(
    ("build", "dataset", "message", "hint"),
    [
        (twenty_scores, "mnist", "the model returns (B, 20), but the workload has 10 classes", "it must return scores (B, 10)"),
        (flat_scores, "mnist", "the model returns (20), but the workload has 10 classes", "it must return scores (B, 10)"),
        (two_outputs, "mnist", "the model returns tuple, but the workload has 10 classes", "it must return scores (B, 10)"),
        (misspelled, "mnist", "the model failed: AttributeError: ", f"raised in {__file__}:"),
        (seven_features, "disc", "the model does not support rows of 2 numbers: ", "the model must take rows of 2 numbers"),
        (
            three_channels,
            "mnist",
            "the model does not support images of 8 px: ",
            "choose another --image-size; the model must take (B, 1, 8, 8)",
        ),
        (one_argument, "mnist", f"cannot call '{here(one_argument)}': ", "its arguments are (8, 10)"),
        (no_module, "mnist", f"'{here(no_module)}' returns str", "it must return a torch.nn.Module"),
    ],
)
def test_model_that_does_not_fit_is_rejected_when_it_is_built(
    build: Callable[..., Any], dataset: Any, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_size = 8 if dataset == "mnist" else None
    spec = replace(DIGITS, dataset=dataset, image_size=image_size, model=here(build))
    monkeypatch.setitem(globals(), "SPEC", spec)
    workload_cost.cache_clear()
    with pytest.raises(UsageError) as refused:
        workload_cost("test_user_workloads:SPEC", image_size)
    assert refused.value.message.startswith(message)
    assert refused.value.hint.startswith(hint)


def test_cost_of_a_user_defined_model_is_counted() -> None:
    assert workload_cost("test_user_workloads:DIGITS", 8).parameters == 650


@cache
def teacher() -> nn.Linear:
    return nn.Linear(64, 10).requires_grad_(False)


class Student(nn.Module):
    """Reads its random weights while it is built, and uses a model that others keep."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.teacher = nn.Linear(64, 10), teacher()
        if not self.linear.weight.std() > 0:
            raise ValueError("these weights are not random")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.flatten(1)) + self.teacher(x.flatten(1))
        return out


def student(image_size: int, classes: int) -> nn.Module:
    return Student()


STUDENT = replace(DIGITS, name="student", model=here(student))


def test_counting_builds_user_defined_model_with_its_random_weights() -> None:
    assert workload_cost("test_user_workloads:STUDENT", 8).parameters == 650
    assert 0.05 < teacher().weight.std() < 0.1  # uniform up to 1 / 8


def test_model_of_the_package_is_counted_without_random_weights() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert workload_cost.__wrapped__("resnet18", 224).parameters == 11_689_512
    assert torch.equal(torch.get_rng_state(), before)
