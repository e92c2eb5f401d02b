"""Profiler: a trace on CPU, and the exposed part of communication kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SMALL, SUPPORT_ENV

from ddpbench.training.profiler import ALL_REDUCE_KERNEL, NCCL_KERNEL, exposed_length


@pytest.mark.slow
def test_cpu_profile_prints_no_gpu_messages(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, "misbehaving:fine", *SMALL, "--rounds", "1", "--profile", "-o", str(results)]
    done = launch(words, env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("ddpbench: ") for line in done.stderr.splitlines()), done.stderr
    (trace,) = results.glob("*.trace.json")
    assert json.loads(trace.read_text())["traceEvents"]


def test_exposed_length_excludes_overlap_with_other_kernels() -> None:
    others = [(0.0, 12.0), (5.0, 14.0), (15.0, 16.0), (19.0, 40.0), (50.0, 60.0)]
    assert exposed_length((10.0, 20.0), others) == 1 + 3
    assert exposed_length((42.0, 48.0), others) == 6
    assert exposed_length((20.0, 30.0), others) == 0


def test_broadcast_is_a_communication_kernel_but_not_an_all_reduce() -> None:
    kernels = ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)")
    assert [bool(NCCL_KERNEL.search(name)) for name in kernels] == [True, True]
    assert [bool(ALL_REDUCE_KERNEL.search(name)) for name in kernels] == [False, True]
