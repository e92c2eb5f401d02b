"""Run a program of a training on cores of its own, with one thread per process and without GPUs."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core_slots import pinned

from trainings import data
from trainings.listing import FOLDER, Training

END_S = 15
"""Within which a program ends that was asked to."""


@dataclass(frozen=True)
class Ended:
    """A program that has ended, with the lines of its output."""

    lines: list[str]
    exit_code: int | None  # None if it was ended at its limit
    elapsed_s: float


def machine(cores: int) -> str:
    """What measured: processor, cores of a run, versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    torch = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True).stdout
    return f"{cores} of {os.cpu_count()} cores, {processor}, torch {torch.strip()}, Python {platform.python_version()}"


def prepare(training: Training, repositories: Path, folder: Path) -> None:
    """Generate its data once, in ``data``; what its runs write temporarily is beside it."""
    if (folder / "prepared").exists():
        return
    for name in ("data", "temporary"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    getattr(data, training.prepare)(repositories / training.folder_name, folder / "data")
    (folder / "prepared").touch()


def place(training: Training, repositories: Path) -> Path:
    """The folder in which the script starts."""
    return repositories / training.folder_name / training.folder if training.is_public and not training.is_package else FOLDER


def started(training: Training) -> list[str]:
    """The words that start a Python program of a training, on each of its ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={training.ranks}"] if training.ranks > 1 else []
    return [sys.executable, *torchrun]


def script_words(words: str, folder: Path) -> list[str]:
    """The script and its arguments, with the folder of its data."""
    return words.replace("{data}", str(folder / "data")).split()


def run_pinned(
    training: Training,
    words: list[str],
    repositories: Path,
    folder: Path,
    cores: list[int],
    limit_s: float,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run ``words`` on ``cores``, and end them with all that they started after ``limit_s``."""
    given = {name: value.replace("{data}", str(folder / "data")) for name, value in training.environment.items()}
    common = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder / "temporary")}
    environment = os.environ | common | given | dict(variables or {})
    start_s = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        program = subprocess.Popen(
            pinned(words, cores),
            cwd=place(training, repositories),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        exit_code = _wait(program, limit_s)
        if exit_code is None:
            _signal(program, signal.SIGTERM)  # torchrun ends its ranks, which have sessions of their own
            _wait(program, END_S)
        _signal(program, signal.SIGKILL)  # workers that it left
        program.wait()
        output.seek(0)
        lines = output.read().strip().splitlines()
    return Ended(lines, exit_code, round(time.monotonic() - start_s, 1))


def _wait(program: subprocess.Popen[bytes], limit_s: float) -> int | None:
    try:
        return program.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None


def _signal(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, number)
