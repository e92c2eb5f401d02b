"""Judge stored records again after a change of checks or verdicts, and rewrite them. Their figures stay.

    python results/judge_again.py FILE ...

A figure may come from several launches or use earlier runs, of which a record does not hold the rounds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddpbench.analysis.judge import judge_all
from ddpbench.record.io import load, save
from ddpbench.record.record import Job


def judge_again(job: Job) -> None:
    """Replace the checks and verdicts of ``job``. A record keeps its throughput, unless a check now finds an error."""
    figures = [record.throughput for record in job.records]
    for record in job.records:
        record.checks, record.verdict = [], None
        record.status = "ok" if record.status == "invalid" else record.status
    judge_all(job)
    for record, figure in zip(job.records, figures, strict=True):
        record.throughput = record.throughput and (figure or record.throughput)


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        job = load(path)
        judge_again(job)
        save(job, path)


if __name__ == "__main__":
    main(sys.argv[1:])
