"""Notes on flags without effect, printed once before the run."""

from __future__ import annotations

from typing import Any

import pytest
from training import unjoined_world

from ddpbench.bench.preflight import DDP_FLAGS, note_unused_flags
from ddpbench.bench.resolve import resolve_config
from ddpbench.distributed.world import World
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError

PLAIN = Config(workload="resnet18")
TUNED = Config(
    workload="resnet18", broadcast_buffers=False, bucket_cap_mb=5, gradient_as_bucket_view=False, static_graph=True, comm_hook="fp16"
)


def noted(asked: list[Config], where: World) -> None:
    note_unused_flags(asked, [resolve_config(arm, cuda=False, local_world_size=1) for arm in asked], where)


def test_ddp_flags_without_process_group_are_listed_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    noted([TUNED], unjoined_world("none"))
    named = "--no-broadcast-buffers, --bucket-cap-mb, --no-gradient-as-bucket-view, --static-graph, --comm-hook"
    note = f"ddpbench: note: {named} have no effect without DDP; start ranks with --gpus N or torchrun\n"
    assert capsys.readouterr() == ("", note)
    assert len(named.split(", ")) == len(DDP_FLAGS)


def test_single_unused_flag_is_described_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    noted([Config(workload="resnet18", comm_hook="bf16")], unjoined_world("none"))
    assert capsys.readouterr().err.startswith("ddpbench: note: --comm-hook has no effect without DDP; ")


def test_ddp_flags_with_engine_none_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    noted([Config(workload="resnet18", comm_hook="bf16", engine="none")], unjoined_world("gloo"))
    assert capsys.readouterr().err == "ddpbench: note: --comm-hook has no effect without DDP; remove --engine none\n"


def test_flags_unused_by_the_loader_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    torch, dali = (Config(workload="resnet18", loader=loader, hw_decoder_load=0.5) for loader in ("torch", "dali-gpu"))
    noted([torch], unjoined_world("none"))
    note = "ddpbench: note: --hw-decoder-load has no effect without a GPU decoder; add --loader dali-gpu\n"
    assert capsys.readouterr().err == note
    noted([torch, dali], unjoined_world("none"))
    assert capsys.readouterr().err == ""
    noted([Config(workload="resnet18", loader="replay", pin_memory=False)], unjoined_world("none"))
    assert capsys.readouterr().err == "ddpbench: note: --no-pin-memory has no effect with this loader; remove it\n"
    noted([Config(workload="resnet18", loader="torch", pin_memory=False)], unjoined_world("none"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("workload", "given", "note"),
    [
        ("resnet18", {"optimizer": "adam", "momentum": 0.5}, "--momentum has no effect without SGD; add --optimizer sgd"),
        (
            "resnet18",
            {"workers": 4, "augment": False, "skip_bad": 2},
            "--workers, --no-augment, --skip-bad have no effect with synthetic data; add --loader NAME or --data-dir DIR",
        ),
        ("resnet18", {"pin_memory": False}, "--no-pin-memory has no effect with this loader; remove it"),
        ("resnet18", {"fused_kernels": True}, "--fused-kernels has no effect on a CPU; remove it"),
        ("resnet18", {"cuda_graph": True}, "--cuda-graph has no effect on a CPU; remove it"),
        (
            "resnet18",
            {"combo_kernels": True, "cudnn_benchmark_limit": 0},
            "--combo-kernels, --cudnn-benchmark-limit have no effect on a CPU; remove it",
        ),
        ("disc-mlp-2", {"workers": 4}, "--workers has no effect when the whole dataset is on the device; remove it"),
        ("resnet18", {"loader": "torch", "workers": 0, "prefetch": 4}, "--prefetch has no effect without workers; use -j 1 or more"),
        ("mnist-cnn", {"loader": "torch", "skip_bad": 2}, "--skip-bad has no effect on datasets without image files; remove it"),
    ],
)
def test_unused_flag_is_listed_with_a_hint(workload: str, given: dict[str, Any], note: str, capsys: pytest.CaptureFixture[str]) -> None:
    noted([Config(workload=workload, **given)], unjoined_world("none"))
    assert capsys.readouterr().err == f"ddpbench: note: {note}\n"


def test_switch_that_turns_off_what_is_off_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    noted([Config(workload="resnet18", compile="off", combo_kernels=False, fused_kernels=False, cuda_graph=False)], unjoined_world("none"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([{"fast": False}, {"fast": True}], "--fast has no effect on a CPU: the arms would be the same"),
        ([{"workers": 1}, {"workers": 2}], "--workers has no effect with synthetic data: the arms would be the same"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_arms_that_differ_in_an_unused_flag_are_refused_on_every_rank(given: list[dict[str, Any]], problem: str, rank: int) -> None:
    with pytest.raises(UsageError) as refused:
        noted([Config(workload="resnet18", **each) for each in given], unjoined_world("none", rank))
    assert refused.value.message == problem


def test_flag_used_by_one_arm_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    noted([Config(workload="resnet18", loader=loader, workers=4) for loader in ("synthetic", "torch")], unjoined_world("none"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("asked", "where"),
    [([PLAIN], unjoined_world("none")), ([TUNED], unjoined_world("gloo")), ([TUNED], unjoined_world("none", rank=1))],
    ids=["none", "DDP", "rank 1"],
)
def test_no_note_without_unused_flags_or_on_other_ranks(asked: list[Config], where: World, capsys: pytest.CaptureFixture[str]) -> None:
    noted(asked, where)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "is_cuda", "runs"),
    [({}, True, True), ({}, False, False), ({"channels_last": False}, True, False), ({"compile": "default"}, True, False)],
)
def test_fused_kernels_run_on_gpus_in_eager_channels_last_code(given: dict[str, Any], is_cuda: bool, runs: bool) -> None:
    arm = resolve_config(Config(workload="resnet18", fused_kernels=True, **given), cuda=True, local_world_size=1)
    assert arm.runs_fused_kernels(is_cuda) == runs
