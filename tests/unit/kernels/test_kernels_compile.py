"""Kernels compile for a GPU that is not there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import SUPPORT, SUPPORT_ENV

KERNELS, FEW_BYTES = 12, 64
CAPABILITY = "90"
"""Of an H100 or H200."""


@pytest.mark.slow
def test_kernels_compile_without_spilling_registers(launch: Callable[..., Any], tmp_path: Path) -> None:
    environment = {**SUPPORT_ENV, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = launch([sys.executable, str(SUPPORT / "compile_kernels.py"), CAPABILITY], env=environment)
    assert done.returncode == 0, done.stderr
    compiled = [line.split() for line in done.stdout.splitlines()]
    assert len({name for name, _, _ in compiled}) == KERNELS
    assert [each for each in compiled if int(each[2]) > FEW_BYTES] == []
