"""The page that fits a job: what measured it decides how it reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.console import Console

from ddpbench.record.record import Job
from ddpbench.report.crossover import render_crossover
from ddpbench.report.diagnosis import render_diagnosis
from ddpbench.report.reproduction import render_reproduction
from ddpbench.report.scaling import render_scaling
from ddpbench.report.sweep import render_sweep
from ddpbench.report.terminal import render_run


class Render(Protocol):
    """Prints a job; ``path`` is where it lies, ``None`` where it could not be saved."""

    def __call__(self, job: Job, console: Console, path: Path | None, *, verbose: bool, quiet: bool) -> None: ...


PAGES: Mapping[str, Render] = {
    "run": render_run,
    "sweep": render_sweep,
    "crossover": render_crossover,
    "diagnose": render_diagnosis,
    "scale": render_scaling,
}


def page(job: Job) -> Render:
    """What prints ``job``; a kind that this release does not know reads as a run."""
    kind, _, name = job.kind.partition(" ")
    return partial(render_reproduction, name) if kind == "reproduce" else PAGES.get(kind, render_run)
