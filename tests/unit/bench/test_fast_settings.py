"""``--fast`` chooses settings by rules, and leaves what the user has set."""

from __future__ import annotations

from typing import Any

import pytest

from ddpbench.bench.fast import can_predict_fast, resolve_fast
from ddpbench.bench.preflight import with_one_benchmark_limit
from ddpbench.bench.resolve import resolve_config
from ddpbench.record.config import Config


def chosen(workload: str, cuda: bool = True, **given: Any) -> tuple[bool, bool, str]:
    """Fused kernels, CUDA graph and compile mode."""
    arm = resolve_config(Config(workload=workload, precision="amp-fp16", **{"fast": True, **given}), cuda, local_world_size=1)
    return arm.fused_kernels, arm.cuda_graph, arm.compile


@pytest.mark.parametrize(
    ("workload", "given", "settings"),
    [
        ("resnet18", {}, (True, True, "off")),
        ("resnet18", {"fast": False}, (False, False, "off")),
        ("resnet18", {"cuda": False}, (False, False, "off")),
        ("mnist-cnn", {}, (False, True, "default")),
        ("disc-mlp-5", {}, (False, True, "default")),
        ("gemm-mlp", {}, (False, True, "off")),
        ("vgg16-cifar10", {}, (False, True, "default")),
        ("vgg16-cifar10", {"fused_kernels": True}, (True, True, "off")),
        ("vgg16-cifar10", {"compile": "off"}, (True, True, "off")),
        ("resnet18", {"fused_kernels": False}, (False, True, "off")),
        ("resnet18", {"cuda_graph": False}, (True, False, "off")),
        ("resnet18", {"compile": "default"}, (False, True, "default")),
        ("resnet18", {"compile": "reduce-overhead"}, (False, False, "reduce-overhead")),
        ("resnet18", {"channels_last": False}, (False, True, "off")),
        ("resnet18", {"schedule": "linear"}, (True, False, "off")),
        ("resnet18", {"engine": "accelerate"}, (True, False, "off")),
        ("resnet18", {"optimizer_impl": "foreach"}, (True, False, "off")),
        ("resnet18", {"share_gpu": True}, (True, False, "off")),
    ],
)
def test_rules_fill_in_what_is_open(workload: str, given: dict[str, Any], settings: tuple[bool, bool, str]) -> None:
    assert chosen(workload, **given) == settings


@pytest.mark.parametrize(
    ("workload", "given", "is_combined"),
    [
        ("vgg16-cifar10", {}, True),
        ("vgg16-cifar10", {"combo_kernels": False}, False),
        ("vgg16-cifar10", {"compile": "off"}, False),
        ("vgg16-cifar10", {"fast": False, "compile": "default"}, False),
        ("resnet18", {}, False),
        ("resnet18", {"compile": "default"}, True),
    ],
)
def test_compiled_kernels_are_combined(workload: str, given: dict[str, Any], is_combined: bool) -> None:
    requested = Config(workload=workload, precision="amp-fp16", **{"fast": True, **given})
    assert resolve_config(requested, cuda=True, local_world_size=1).combo_kernels is is_combined


@pytest.mark.parametrize(
    ("workload", "given", "implementation"),
    [
        ("vgg16-cifar10", {}, "triton"),
        ("vgg16-cifar10", {"optimizer_impl": "fused"}, "fused"),
        ("vgg16-cifar10", {"optimizer": "adam"}, "fused"),
        ("vgg16-cifar10", {"precision": "bf16"}, "fused"),
        ("vgg16-cifar10", {"cuda_graph": False}, "fused"),
        ("vgg16-cifar10", {"compile": "off"}, "fused"),
        ("vgg16-cifar10", {"fast": False}, "fused"),
        ("resnet18", {}, "fused"),
    ],
)
def test_short_steps_are_updated_in_triton(workload: str, given: dict[str, Any], implementation: str) -> None:
    requested = Config(workload=workload, **{"precision": "amp-fp16", "fast": True, **given})
    assert resolve_config(requested, cuda=True, local_world_size=1).optimizer_impl == implementation


@pytest.mark.parametrize(
    ("workload", "given", "limit"),
    [
        ("vgg16-cifar10", {}, 0),
        ("vgg16-cifar10", {"image_size": 32}, 0),
        ("vgg16-cifar10", {"image_size": 224}, 10),
        ("mnist-cnn", {}, 10),
        ("vgg16-cifar10", {"cudnn_benchmark_limit": 10}, 10),
        ("vgg16-cifar10", {"fast": False}, 10),
        ("vgg16-cifar10", {"fast": False, "cudnn_benchmark_limit": 5}, 5),
        ("resnet18", {}, 10),
    ],
)
def test_all_algorithms_of_cudnn_are_tried_for_vgg16_with_small_images(workload: str, given: dict[str, Any], limit: int) -> None:
    requested = Config(workload=workload, precision="amp-fp16", **{"fast": True, **given})
    assert resolve_config(requested, cuda=True, local_world_size=1).cudnn_benchmark_limit == limit


@pytest.mark.parametrize(("given", "limit"), [({}, 10), ({"cudnn_benchmark_limit": 5}, 5)])
def test_fast_settings_after_a_training_keep_the_algorithms_of_cudnn(given: dict[str, Any], limit: int) -> None:
    requested = Config(workload="vgg16-cifar10", precision="amp-fp16", **given)
    assert resolve_fast(requested, resolve_config(requested, cuda=True, local_world_size=1)).cudnn_benchmark_limit == limit


@pytest.mark.parametrize("fast", [(True, False), (False, True)])
def test_arms_of_a_job_try_the_same_algorithms_of_cudnn(fast: tuple[bool, ...]) -> None:
    requested = [Config(workload="vgg16-cifar10", precision="amp-fp16", fast=each) for each in fast]
    arms = with_one_benchmark_limit([resolve_config(each, cuda=True, local_world_size=1) for each in requested])
    assert [arm.cudnn_benchmark_limit for arm in arms] == [0, 0]


@pytest.mark.parametrize(
    ("given", "is_broadcast"),
    [
        ({}, False),
        ({"broadcast_buffers": True}, True),
        ({"validate": True}, True),
        ({"engine": "none"}, True),
        ({"fast": False}, True),
        ({"fast": False, "broadcast_buffers": False}, False),
    ],
)
def test_ranks_keep_their_own_buffers_unless_they_are_evaluated(given: dict[str, Any], is_broadcast: bool) -> None:
    requested = Config(workload="resnet18", precision="amp-fp16", **{"fast": True, **given})
    assert resolve_config(requested, cuda=True, local_world_size=2).broadcast_buffers is is_broadcast


def test_user_defined_models_keep_the_broadcast_of_their_buffers() -> None:
    assert resolve_config(Config(workload="situations.workloads:light_cifar", fast=True), cuda=True, local_world_size=2).broadcast_buffers


@pytest.mark.parametrize(
    ("workload", "given", "is_predicted"),
    [
        ("resnet18", {}, True),
        ("resnet18", {"fused_kernels": False}, False),
        ("resnet18", {"cuda_graph": False}, False),
        ("resnet18", {"fused_kernels": True}, False),
        ("resnet18", {"schedule": "linear"}, False),
        ("vgg16-cifar10", {}, False),
        ("mnist-cnn", {}, False),
    ],
)
def test_fast_is_predicted_only_for_fused_kernels_in_graphs_that_the_user_left_open(
    workload: str, given: dict[str, Any], is_predicted: bool
) -> None:
    requested = Config(workload=workload, precision="amp-fp16", **given)
    assert can_predict_fast(requested, resolve_config(requested, True, local_world_size=1)) is is_predicted
