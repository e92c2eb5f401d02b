"""``accelerate launch``: ranks if it starts several processes, an error if it starts one instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import SMALL, SUPPORT_ENV, errors, only_record

LAUNCH = [str(Path(sys.executable).with_name("accelerate")), "launch"]
WORDS = ["-m", "ddpbench", "misbehaving:fine", *SMALL, "--rounds", "2"]

pytestmark = pytest.mark.timeout(110)


@pytest.mark.slow
def test_accelerate_launch_on_cpu_gives_two_ranks_in_one_record(launch: Callable[..., Any], results: Path) -> None:
    asked = [*LAUNCH, "--multi_gpu", "--num_processes=2", "--main_process_port=0", *WORDS, "-o", str(results)]
    done = launch(asked, env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    record = only_record(results)
    assert (record.status, record.world_size, record.environment.backend) == ("ok", 2, "gloo")
    assert record.environment.launcher == "accelerate"
    assert [[trace.rank for trace in timed.traces] for timed in record.rounds] == [[0, 1], [0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--num_processes=2"], ["--cpu", "--num_processes", "4"]], ids=" ".join)
def test_accelerate_launch_with_a_single_process_is_rejected(launch: Callable[..., Any], results: Path, flags: list[str]) -> None:
    done = launch([*LAUNCH, *flags, *WORDS, "-o", str(results)], env={**SUPPORT_ENV, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode != 0
    (error,) = errors(done.stderr)
    assert error.startswith("accelerate launch was asked for several processes but started one")
    assert "hint: for CPU ranks: accelerate launch --multi_gpu --num_processes=N -m ddpbench WORKLOAD --device cpu\n" in done.stderr
    assert "returned non-zero exit status 2" in done.stderr, "accelerate reports the exit code"
    assert not results.exists()
