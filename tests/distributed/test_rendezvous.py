"""Before the first step: errors on one rank, missing ranks, mismatched commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import SMALL, SUPPORT, SUPPORT_ENV, TORCHRUN, only_job

pytestmark = pytest.mark.timeout(110)


@pytest.mark.slow
def test_error_on_one_rank_is_reported_without_waiting(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The data exist for rank 0 but not for rank 1; rank 0 would wait for minutes."""
    for rank, classes in enumerate(("n0/a", "")):
        (tmp_path / str(rank) / "data" / classes).mkdir(parents=True)
    for number in range(8):
        (tmp_path / "0/data/n0/a" / f"{number}.jpg").touch()
    each = f'cd {tmp_path}/$RANK && exec {TORCHRUN[0]} -m ddpbench resnet18 -b 2 --device cpu --data-dir data -o "{tmp_path}/runs"'
    done = launch([*TORCHRUN[:-2], "--no-python", "bash", "-c", each], timeout=60)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ddpbench: error:")]
    assert len(errors) == 1, done.stderr
    assert "rank 1 (" in errors[0]
    assert "only: no class folders in 'data'" in errors[0]
    assert not (tmp_path / "runs").exists(), "no run was started"


@pytest.mark.slow
def test_ranks_with_different_commands_are_rejected(launch: Callable[..., Any], tmp_path: Path) -> None:
    """A typo on one of two nodes must not start different trainings."""
    words, arms = ("scale disc-mlp-2 -b 4 --time-limit 20", "run disc-mlp-2 -b 8 --time-limit 20"), ("arm 1 rank", "arm not set")
    first, other = (f'{TORCHRUN[0]} -m ddpbench {each} --device cpu -o "{tmp_path}/runs"' for each in words)
    each = f"if [ $RANK = 0 ]; then exec {first}; else exec {other}; fi"
    done = launch([*TORCHRUN[:-2], "--no-python", "bash", "-c", each], timeout=60)
    assert done.stderr.count("ddpbench: error: ranks differ:") == 1, done.stderr
    for rank, flag in enumerate(arms):
        assert re.search(rf"^  rank {rank} \(.*\)  .*{flag}", done.stderr, re.MULTILINE), done.stderr
    assert not (tmp_path / "runs").exists(), "no run was started"


@pytest.mark.slow
def test_rank_that_never_joins_is_reported(launch: Callable[..., Any], tmp_path: Path) -> None:
    argv = [*TORCHRUN[:-2], str(SUPPORT / "rank_never_joins.py"), "misbehaving:fine", *SMALL, "--hang-timeout", "1", "-o", str(tmp_path)]
    done = launch(argv, env=SUPPORT_ENV, timeout=60)
    assert re.search(r"(rank 1 \(.*\)|all ranks) hung at step", done.stderr), done.stderr
    assert "(joining the process group): no progress" in done.stderr
    assert only_job(tmp_path).records[0].status == "hung"
