"""ddpbench: how fast your GPUs train, whether to believe it, and what holds them back.

From Python there are three functions: ``watch`` around a training loop, ``diagnose`` for a script, and ``load`` for a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from ddpbench.record.job_summary import JobSummary

__version__ = "0.1.0"

__all__ = ["diagnose", "load", "watch"]


def watch(name: str = "training", *, output_dir: str = "results/runs", quiet: bool = False) -> AbstractContextManager[None]:
    """Watch the training loop in a ``with`` block, and print the page when it ends; in a notebook, below its cell.

    ::

        with ddpbench.watch():
            for inputs, targets in loader:
                ...

    The record goes to ``output_dir``. An exception of the block passes on, after the page of what was measured. Raises UsageError if
    another block is watched already, or if ``output_dir`` cannot be written.
    """
    from ddpbench.script.watch import watched_block

    return watched_block(name, output_dir, quiet)


def diagnose(script: str | PathLike[str], arguments: Sequence[str] = (), *, flags: Sequence[str] = ()) -> JobSummary:
    """Run ``ddpbench diagnose`` on ``script`` with its ``arguments`` in a process of its own, and return the summary.

    ``flags`` are those of ``ddpbench diagnose``, such as ``["--gpus", "2", "--time-limit", "90"]``. The page goes to stderr. Raises
    BenchError with what the command said if it leaves no summary.
    """
    from ddpbench.script.diagnose.from_python import diagnose_script

    return diagnose_script(script, arguments, flags)


def load(path: str | PathLike[str]) -> JobSummary:
    """The summary of the record at ``path``. Raises UsageError if that is not a record."""
    from pathlib import Path

    from ddpbench.bench.journal import load_job
    from ddpbench.published import views
    from ddpbench.report.summarize_job import summarize_job

    views.register()
    return summarize_job(load_job(Path(path)), Path(path))
