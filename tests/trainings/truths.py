"""Time a training by hand: as it is, with each change, and on repeated batches, in alternating plain runs."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trainings import data
from trainings.listing import FOLDER, Change, Training

AS_IS, REPEATED = "as it is", "repeated batches"

BATCHES = 8
"""Batches that are repeated from memory."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The timed window of one run."""

    steps: int
    seconds: float
    ms_per_step: float
    cpu_ms_per_step: float | None = None  # of the trainer, without its workers; robust on a busy machine


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnosis of a training, beside its truth."""

    command: str = ""
    score: str = ""
    verdict: str = ""
    says: str = ""
    cure: str = ""
    predicted: tuple[float, float, float] | None = None  # centre, low, high
    measured: tuple[float, float, float] | None = None


class Truth(msgspec.Struct, kw_only=True):
    """All runs of one training, by what was changed, in the order in which they were made."""

    name: str
    machine: str = ""
    runs: dict[str, list[Timing]] = {}
    failures: dict[str, str] = {}  # the last lines of a run that failed
    diagnosed: list[Diagnosed] = []

    def ms(self, title: str) -> float | None:
        """Median of the runs with a change, None if there are none."""
        return statistics.median(run.ms_per_step for run in self.runs[title]) if self.runs.get(title) else None

    @property
    def best_change(self) -> str:
        """The change with the shortest step, "" if none was measured."""
        tried = [(ms, title) for title in self.runs if title not in (AS_IS, REPEATED) and (ms := self.ms(title)) is not None]
        return min(tried)[1] if tried else ""


def machine(cores: int) -> str:
    """What measured: processor, cores of a run, versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    torch = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True).stdout
    return f"{cores} of {os.cpu_count()} cores, {processor}, torch {torch.strip()}, Python {platform.python_version()}"


def planned(training: Training, pairs: int) -> Iterator[tuple[str, Change | None]]:
    """The runs of a training: as it is and with each change alternate."""
    for number in range(pairs):
        yield AS_IS, None
        yield from ((change.title, change) for change in training.changes)
        if number == 0 and training.has_loader:
            yield REPEATED, None


def prepare(training: Training, repositories: Path, folder: Path) -> None:
    """Generate its data once, in ``data``; what its runs write temporarily is beside it."""
    if (folder / "prepared").exists():
        return
    for name in ("data", "temporary"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    getattr(data, training.prepare)(repositories / training.folder_name, folder / "data")
    (folder / "prepared").touch()


def command(training: Training, title: str, change: Change | None, folder: Path, seconds: float) -> list[str]:
    """The words that time one run with ``time_steps.py``."""
    options = ["--after", str(training.after), "--seconds", str(seconds), "--every", str(training.every)]
    options += ["--until", str(training.until)] if training.until else []
    options += [word for argument in (change.loader if change else ()) for word in ("--loader", argument)]
    options += ["--repeat-batches", str(BATCHES), *(["--endless"] if training.endless else [])] if title == REPEATED else []
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={training.ranks}"] if training.ranks > 1 else []
    words = (change.words if change and change.words else training.words).replace("{data}", str(folder / "data")).split()
    return [sys.executable, *launcher, str(FOLDER / "time_steps.py"), *options, *words]


def place(training: Training, repositories: Path) -> Path:
    """The folder in which the script starts."""
    return repositories / training.folder_name / training.folder if training.is_public and not training.is_package else FOLDER


def run(training: Training, words: list[str], repositories: Path, folder: Path, cores: list[int], limit_s: float) -> Timing | str:
    """The window of one run, or its last lines if it failed."""
    given = {name: value.replace("{data}", str(folder / "data")) for name, value in training.environment.items()}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder / "temporary")} | given
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *words]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        started = subprocess.Popen(
            pinned, cwd=place(training, repositories), env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            started.wait(limit_s)
            problem = ""
        except subprocess.TimeoutExpired:
            problem = f"no end after {limit_s:.0f} s\n"
        with contextlib.suppress(ProcessLookupError):  # workers that it left
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        output.seek(0)
        lines = output.read().strip().splitlines()
    timed = [line for line in lines if line.startswith('{"steps"')]
    return Timing(**json.loads(timed[-1])) if timed else problem + "\n".join(lines[-6:])[-900:]
