"""Loads a job from its file during a run, after it, or after it was cut off; needs no torch."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from ddpbench.analysis.judge import judge_all
from ddpbench.bench.journal import close_records
from ddpbench.record.environment import RankPlacement
from ddpbench.record.errors import UsageError
from ddpbench.record.io import load
from ddpbench.record.record import Fault, Job


def load_job(path: Path) -> Job:
    """The job in ``path``; one that is not closed is judged by the rounds it has, and marked interrupted if its process is gone.

    Raises UsageError if the file is not a record.
    """
    job = load(path)
    if not job.records:
        raise UsageError(f"'{path}' holds no training", "it ended before the first began")
    unclosed = [record for record in job.records if record.status == "running"]
    if not unclosed:
        return job
    place = unclosed[0].environment.placements[0]
    if not _is_running(place, path):
        elsewhere = "" if _is_this_host(place.host) and "#" not in place.host else f", or it still runs on {place.host}"
        close_records(unclosed, "interrupted", Fault(message=f"cut off, its process is gone{elsewhere}"))
    judge_all(job)
    return job


def _is_running(placement: RankPlacement, path: Path) -> bool:
    """Whether the rank at ``placement`` still writes the record ``path``. A process younger than the file is a different one."""
    if not _is_this_host(placement.host):
        return False
    try:
        process = psutil.Process(placement.pid)
        return process.status() != psutil.STATUS_ZOMBIE and bool(process.create_time() <= path.stat().st_mtime)
    except psutil.Error:
        return False


def _is_this_host(host: str) -> bool:
    """Whether ``host`` may be this host. Names of nodes that share one end in "#" and a number, so a match can be another node."""
    return host.partition("#")[0] in (socket.gethostname(), os.environ.get("SLURMD_NODENAME"))
