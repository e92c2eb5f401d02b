"""Before the first step: what one rank alone refuses, who never joins, what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import HERE, SMALL, SUPPORT, TORCHRUN, only_job

pytestmark = pytest.mark.timeout(110)


@pytest.mark.slow
def test_what_one_rank_alone_refuses_is_told(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The data lie where rank 0 stands, and not where rank 1 does; rank 0 would wait for it for minutes."""
    for rank, classes in enumerate(("n0/a", "")):
        (tmp_path / str(rank) / "data" / classes).mkdir(parents=True)
    for number in range(8):
        (tmp_path / "0/data/n0/a" / f"{number}.jpg").touch()
    each = f'cd {tmp_path}/$RANK && exec {TORCHRUN[0]} -m ddpbench resnet18 -b 2 --device cpu --data-dir data -o "{tmp_path}/runs"'
    done = launch([*TORCHRUN[:-2], "--no-python", "bash", "-c", each], timeout=60)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ddpbench: error:")]
    assert len(errors) == 1, done.stderr
    assert "rank 1 (" in errors[0]
    assert "alone: no class folders in 'data'" in errors[0]
    assert not (tmp_path / "runs").exists(), "nothing began"


@pytest.mark.slow
def test_ranks_that_are_given_different_commands_are_refused(launch: Callable[..., Any], tmp_path: Path) -> None:
    """A typing error on one of two nodes: each trained what it was asked, and the page told of one of them."""
    words, told = ("scale disc-mlp-2 -b 4 --time-limit 20", "run disc-mlp-2 -b 8 --time-limit 20"), ("arm 1 rank", "arm not given")
    first, other = (f'{TORCHRUN[0]} -m ddpbench {each} --device cpu -o "{tmp_path}/runs"' for each in words)
    each = f"if [ $RANK = 0 ]; then exec {first}; else exec {other}; fi"
    done = launch([*TORCHRUN[:-2], "--no-python", "bash", "-c", each], timeout=60)
    assert done.stderr.count("ddpbench: error: ranks differ:") == 1, done.stderr
    for rank, flag in enumerate(told):
        assert re.search(rf"^  rank {rank} \(.*\)  .*{flag}", done.stderr, re.MULTILINE), done.stderr
    assert not (tmp_path / "runs").exists(), "nothing began"


@pytest.mark.slow
def test_a_rank_that_never_joins_is_named(launch: Callable[..., Any], tmp_path: Path) -> None:
    argv = [*TORCHRUN[:-2], str(SUPPORT / "late_joiner.py"), "misbehaving:fine", *SMALL, "--hang-timeout", "1", "-o", str(tmp_path)]
    done = launch(argv, env=HERE, timeout=60)
    assert "hung on rank 1 (" in done.stderr or "hung on every rank" in done.stderr, done.stderr
    assert "(joining the process group): no progress" in done.stderr
    assert only_job(tmp_path).records[0].status == "hung"


@pytest.mark.slow
def test_an_input_that_does_not_fit_the_model_is_refused_before_the_ranks_meet(launch: Callable[..., Any], tmp_path: Path) -> None:
    done = launch([*TORCHRUN, "vgg16-cifar10", "--device", "cpu", "--image-size", "40", "-o", str(tmp_path)])
    assert done.stderr.count("ddpbench: error:") == 1
    assert "does not support images of 40 px" in done.stderr
    assert not list(tmp_path.iterdir()), "no record of what never began"


@pytest.mark.slow
def test_an_arm_that_one_rank_cannot_hold_leaves_the_others_their_figures(launch: Callable[..., Any], tmp_path: Path) -> None:
    argv = [*TORCHRUN, "greedy:greedy", "-b", "2,8,4", "--steps", "2", "--rounds", "3", "--warmup", "1", "--device", "cpu"]
    done = launch([*argv, "-o", str(tmp_path)], env=HERE)
    assert done.returncode == 0, done.stderr
    small, large, middle = only_job(tmp_path).records
    assert (small.status, middle.status) == ("ok", "ok")
    assert small.throughput is not None
    assert middle.throughput is not None
    assert (large.status, len(large.rounds)) == ("failed", 0)
    assert large.fault is not None
    assert "out of memory at batch 8" in large.fault.message
    assert "on rank 1" in large.fault.message
    assert "out of memory" in done.stdout
