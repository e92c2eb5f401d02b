"""Warnings after rendezvous."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import records
from msgspec.structs import replace as with_fields
from training import unjoined_world

from ddpbench.bench.preflight import startup_warnings
from ddpbench.record.config import Config

ALONE = records.record([{"forward": 1.0}])


def test_single_rank_on_several_gpus_or_nodes_is_noted() -> None:
    one = unjoined_world("none")
    assert [*startup_warnings(one, [ALONE], {})] == []
    among = replace(one, device=replace(one.device, num_visible_gpus=4))
    assert [*startup_warnings(among, [ALONE], {})] == ["only 1 of 4 GPUs is used; add --gpus 4 to use all"]
    launched = replace(among, rank_env=replace(one.rank_env, master_addr="127.0.0.1"))
    assert launched.rank_env.launched
    assert [*startup_warnings(launched, [ALONE], {})] == [], "one rank was launched explicitly"
    (said,) = startup_warnings(launched, [ALONE], {"SLURM_JOB_NUM_NODES": "2"})
    assert said.startswith("only one rank runs in a job of 2 nodes; to use all: sbatch ")


def test_unequal_nodes_are_noted() -> None:
    place = records.environment(4, nodes=2)
    fewer = [with_fields(each, usable_cores=8.0) if each.node_rank else each for each in place.placements]
    record = records.record([{"forward": 1.0}] * 4, environment=with_fields(place, placements=fewer))
    two = replace(unjoined_world("gloo"), rank_infos=unjoined_world("gloo").rank_infos * 4)
    (said,) = startup_warnings(two, [record], {})
    assert said.startswith("8 usable cores on ")
    assert said.endswith("the slowest node sets the pace")


@pytest.mark.parametrize(
    ("device", "allocated", "warns"), [("auto", "0,1", True), ("auto", "GPU-5a1c", True), ("auto", "-1", False), ("cpu", "0,1", False)]
)
def test_cpu_training_despite_allocated_gpus_is_noted(device: str, allocated: str, warns: bool) -> None:
    record = records.cpu_run(requested=Config(workload="resnet50", device=device))
    said = [*startup_warnings(unjoined_world("gloo"), [record], {"CUDA_VISIBLE_DEVICES": allocated})]
    assert any(f"CUDA_VISIBLE_DEVICES is {allocated}" in each for each in said) == warns


@pytest.mark.parametrize(("precision", "emulates", "warns"), [("amp-bf16", True, True), ("amp-bf16", False, False), ("fp32", True, False)])
def test_emulated_bfloat16_is_noted(precision: str, emulates: bool, warns: bool) -> None:
    one = records.environment(1, device="Xeon CPU", emulates_bfloat16=emulates)
    run = records.cpu_run(environment=one)
    arms = [run, with_fields(run, config=with_fields(run.config, precision=precision))]
    assert [*startup_warnings(unjoined_world("gloo"), arms, {})] == ["this CPU emulates bfloat16; --precision fp32 is much faster"] * warns


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets of x86")
def test_cpu_without_avx512_emulates_bfloat16() -> None:
    question = [sys.executable, "-c", "from ddpbench.machine.fingerprint import emulates_bfloat16; print(emulates_bfloat16())"]
    only_avx2 = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert subprocess.run(question, env=only_avx2, capture_output=True, text=True, timeout=60).stdout == "True\n"
