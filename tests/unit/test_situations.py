"""The clearest situations with an intentional bottleneck; results/diagnosis/situations.py runs all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import psutil
import pytest
import torch
from open_loaders import opened
from sample_datasets import image_tree
from situations.page import page
from situations.places import busy_neighbours, one_core
from situations.situation import Situation
from situations.table import SITUATIONS
from situations.trial import Said, Trial, score, try_out

from ddpbench.bench.resolve import resolve_config
from ddpbench.cli.parse import parse_request
from ddpbench.cli.train import run
from ddpbench.record.bottleneck import Bottleneck
from ddpbench.record.root_cause import Cause
from ddpbench.workloads import registry as workloads
from ddpbench.workloads.init_model import init_model

BY_NAME = {situation.name: situation for situation in SITUATIONS}
OWN = [situation for situation in SITUATIONS if any(word.startswith("situations.") for word in situation.words)]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_intentional_bottleneck_is_never_misdiagnosed(tmp_path: Path) -> None:
    """Inconclusive is allowed, because other processes may add noise."""
    said = try_out(BY_NAME["one-rank-slow-data"], tmp_path, ["run"]).said["run"]
    assert said.score in ("right", "probably right", "inconclusive"), said


@pytest.mark.slow
@pytest.mark.parametrize("situation", OWN, ids=lambda situation: situation.name)
def test_situation_loader_gives_batches_for_its_model(situation: Situation, tmp_path: Path) -> None:
    tree = ["--data-dir", str(image_tree(tmp_path / "tree", images=32))] if situation.tree else []
    given = run.make_context("run", [*situation.words, *tree, "--device", "cpu", "-b", "2"]).params
    (asked,) = parse_request(given.pop("workload"), given, []).arms
    config, workload = resolve_config(asked, cuda=False, local_world_size=2), workloads.find_workload(asked.workload)
    net = init_model(workload.model, config.image_size, workload.classes, seed=0)
    with opened(config, workload.dataset, classes=workload.classes, rank=1, world_size=2) as loader, torch.no_grad():
        images, _ = loader.next_batch(lambda: None)
        assert net(images).shape == (2, workload.classes)


def test_quota_limits_a_command_to_one_core() -> None:
    script = "from ddpbench.machine.host import usable_cores; print(usable_cores())"
    with one_core() as before:
        done = subprocess.run([*before, sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert float(done.stdout) == 1


def test_busy_neighbours_occupy_every_core() -> None:
    with busy_neighbours():
        assert len(psutil.Process().children()) >= len(os.sched_getaffinity(0))


def test_expected_kinds_and_causes_are_valid_and_names_unique() -> None:
    assert len(BY_NAME) == len(SITUATIONS) >= 16
    assert {situation.kind for situation in SITUATIONS} <= {*get_args(Bottleneck)}
    assert {cause for situation in SITUATIONS for cause in situation.causes} <= {*get_args(Cause)}
    assert all(bool(situation.causes) == (situation.kind == "data-bound") for situation in SITUATIONS if situation.kind != "straggler")


@pytest.mark.parametrize(
    ("kind", "cause", "scored"),
    [
        ("data-bound", "storage", "right"),
        ("data-bound", "", "inconclusive"),
        ("inconclusive", "", "inconclusive"),
        ("data-bound", "decode", "WRONG"),
        ("compute-bound", "", "WRONG"),
    ],
)
def test_only_certain_verdicts_can_be_wrong(kind: str, cause: str, scored: str) -> None:
    assert score(BY_NAME["slow-storage"], kind, cause) == scored


def test_page_shows_the_confusion_of_verdicts() -> None:
    answers = {"run": Said(command="ddpbench run", score="WRONG", kind="data-bound", cause="decode")}
    shown = page(
        [
            Trial(name="slow-storage", done="slow", right="storage", said=answers),
            Trial(name="launch-bound", done="kernels", right="launch-bound", skipped="needs a GPU"),
        ]
    )
    assert "| slow-storage | slow | storage | **WRONG**: decode | - |" in shown
    assert "| launch-bound | kernels | launch-bound | skipped: needs a GPU | skipped: needs a GPU |" in shown
    assert "| `run`: expected, then reported | decode |\n|---|---|\n| storage | 1 |" in shown


def test_probable_verdict_is_probably_right_or_wrong() -> None:
    assert score(BY_NAME["slow-storage"], "data-bound", "storage", plain=False) == "probably right"
    assert score(BY_NAME["slow-storage"], "compute-bound", "", plain=False) == "probably wrong"
