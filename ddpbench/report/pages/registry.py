"""Registry of job kinds: the page of each, and its tables and findings for markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from ddpbench.record.record import Job
from ddpbench.report.grid import Grid
from ddpbench.report.pages import scaling, sweep
from ddpbench.report.pages.diagnosis import diagnosis_findings, diagnosis_tables, render_diagnosis
from ddpbench.report.pages.proof import proof_findings, proof_tables, render_proof
from ddpbench.report.pages.run import render_run
from ddpbench.report.pages.watch import render_watch


class PageRenderer(Protocol):
    """Prints a job; ``path`` is the record's file, None if it could not be saved."""

    def __call__(self, job: Job, console: Console, path: Path | None, *, verbose: bool, quiet: bool) -> None: ...


@dataclass(frozen=True)
class JobView:
    """How jobs of one kind are shown: their page, and their markdown tables and findings."""

    render: PageRenderer
    tables: Callable[[Job], Iterable[Grid]] = lambda job: ()
    findings: Callable[[Job], Iterable[str]] = lambda job: ()  # one sentence each


VIEWS = {
    "run": JobView(render_run),
    "sweep": JobView(sweep.render_sweep, tables=sweep.sweep_grids),
    "diagnose": JobView(render_diagnosis, tables=diagnosis_tables, findings=diagnosis_findings),
    "scale": JobView(scaling.render_scaling, findings=scaling.scaling_findings),
    "watch": JobView(render_watch),
    "ab": JobView(render_proof, tables=proof_tables, findings=proof_findings),
}
"""View by the first word of a job's kind. Packages above this floor add their own."""


def view_of(job: Job) -> JobView:
    """The view of ``job``; that of a run if its kind is not registered."""
    kind, *_ = job.kind.split(" ")
    return VIEWS.get(kind, VIEWS["run"])
