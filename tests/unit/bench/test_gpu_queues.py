"""The number of hardware queues of a GPU, which CUDA reads when it starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ddpbench.cli.parse import parse_request
from ddpbench.record.packages import is_installed

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, whose value is restored afterwards."""
    monkeypatch.setenv(NAME, "4")
    monkeypatch.delenv(NAME)


@pytest.mark.parametrize(
    ("workload", "loader", "tries_loaders", "expected"),
    [
        ("resnet18", "torch", False, None),
        ("resnet18", "torch,dali-gpu", False, "32"),
        ("resnet18", "torch", True, "32" if is_installed("nvidia.dali") else None),
        ("wrn16x2-cifar10", "torch", True, None),
    ],
)
def test_jobs_that_may_decode_on_the_gpu_use_most_queues(workload: str, loader: str, tries_loaders: bool, expected: str | None) -> None:
    parse_request(workload, {"loader": loader}, ["run"], tries_loaders)
    assert os.environ.get(NAME) == expected


def test_queues_that_the_user_has_chosen_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "4")
    parse_request("resnet18", {"loader": "dali-gpu"}, ["run"])
    assert os.environ[NAME] == "4"


DRIVER_STATE = """
import ctypes, runpy, sys
from ddpbench.cli import parse

def report():
    sys.exit(f"driver {ctypes.CDLL('libcuda.so.1').cuDeviceGetCount(ctypes.byref(ctypes.c_int()))}")

parse.use_most_gpu_queues = report
sys.argv = ["ddpbench", "resnet18", "--amp", "--fast", "--loader", "dali-gpu"]
runpy.run_module("ddpbench", run_name="__main__", alter_sys=True)
"""


@pytest.mark.cuda
def test_cuda_has_not_started_when_a_rank_chooses_its_queues() -> None:
    done = subprocess.run([sys.executable, "-c", DRIVER_STATE], capture_output=True, text=True, timeout=100, check=False)
    assert "driver 3" in done.stderr, done.stderr  # CUDA_ERROR_NOT_INITIALIZED
