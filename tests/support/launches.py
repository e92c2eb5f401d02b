"""Commands that start ddpbench in tests, and their error lines and records."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from ddpbench.record.io import load
from ddpbench.record.record import Job, Record

SUPPORT = Path(__file__).parent
SUPPORT_ENV = {"PYTHONPATH": os.pathsep.join(map(str, (SUPPORT, SUPPORT.parent)))}
"""The environment in which a launched program finds workloads and loaders such as ``misbehaving:fine`` or ``situations.spoilt:fine``."""

BARE_ENV = {"PYTHONPATH": str(SUPPORT / "bare_scripts")}
"""The environment of a script with several ranks and loader workers that runs without ddpbench."""

PLAIN = [sys.executable, "-m", "ddpbench"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "ddpbench"]
IMPATIENT = [*TORCHRUN[:-2], str(SUPPORT / "impatient.py")]
SMALL = ["--device", "cpu", "--steps", "4", "--warmup", "1"]
SHORT_DIAGNOSIS = ["diagnose", "misbehaving:fine", "--device", "cpu", "-j", "1", "--steps", "3", "--warmup", "1", "--no-verify"]

FAULT_REPORT_S = 2.0 + 3.0
"""Seconds from a fault to the last message of the ranks: the guarantee plus a margin for two busy cores."""

TORCHRUN_S = 3.0
"""Seconds until torchrun exits on such cores; it kills ranks that do not exit after 30 s."""


def errors(stderr: str) -> list[str]:
    """The error lines of ddpbench, without their prefix."""
    return re.findall(r"^ddpbench: error: (.*)$", stderr, re.MULTILINE)


def only_job(results: Path) -> Job:
    """The job of the only record file in ``results``."""
    (path,) = results.glob("*.json")
    return load(path)


def only_record(results: Path) -> Record:
    """The only record of that job."""
    (record,) = only_job(results).records
    return record


def rounds_on_disk(results: Path) -> int:
    """Number of rounds in the first record in ``results``; 0 without a record."""
    paths = list(results.glob("*.json"))
    return len(load(paths[0]).records[0].rounds) if paths and paths[0].stat().st_size else 0
