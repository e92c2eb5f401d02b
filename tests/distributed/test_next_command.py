"""Following the ``next`` commands terminates and never repeats a command."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from core_load import busy_process

from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.fastest import find_best_arm, next_step_after_comparison
from ddpbench.record.io import load
from ddpbench.record.record import Job
from ddpbench.report.messages.verdict import next_step_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FOLLOWED = 2
HERE = {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def next_of(job: Job) -> str:
    """The next command on the job's page; empty if there is none."""
    real = baseline_of(job) or job.records[0]
    found = None if job.diagnosis else find_best_arm(job.records)  # a diagnosis compares no arms: its records are control runs
    step = next_step_after_comparison(found, job) if found else real.verdict and real.verdict.next
    return next_step_text(step) if step else ""


def test_following_next_commands_on_a_busy_machine_never_repeats_a_command(tmp_path: Path) -> None:
    command, offered = "ddpbench mnist-cnn --loader torch -j 1 --device cpu --gpus 2 --time-limit 8", []
    with ExitStack() as stack:
        for core in os.sched_getaffinity(0):
            stack.enter_context(busy_process(core))
        for number in range(FOLLOWED + 1):
            done = subprocess.run(
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=200,
                env={**os.environ, **HERE},
                cwd=tmp_path,
                start_new_session=True,
                check=False,
            )
            records = sorted((tmp_path / "results" / "runs").glob("*.json"), key=lambda path: path.stat().st_mtime)
            assert (done.returncode, len(records)) == (0, number + 1), done.stderr
            command = next_of(load(records[-1]))
            assert command not in offered, "the same command was suggested again"
            offered.append(command)
            if number == 0:
                assert command, "loaders always have a next command"
            if " ddpbench " not in f" {command} ":  # nothing to gain, or a command that inspects the machine
                return
