"""A diagnosis as a function: the command in a process of its own, and its summary."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ddpbench.record.errors import BenchError
from ddpbench.record.job_summary import JobSummary


def diagnose_script(script: str | os.PathLike[str], arguments: Sequence[str], flags: Sequence[str]) -> JobSummary:
    """The summary of ``ddpbench diagnose`` on ``script``. Raises BenchError if the command leaves none."""
    with tempfile.TemporaryDirectory(prefix="ddpbench-") as folder:
        target = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "ddpbench", "diagnose", "--summary", str(target), *flags, os.fspath(script), *arguments]
        done = subprocess.run(command, check=False)
        if not target.exists():
            raise BenchError(f"'{os.fspath(script)}' was not diagnosed: the command ended with exit code {done.returncode}")
        return msgspec.json.decode(target.read_bytes(), type=JobSummary)
