"""The proof that follows a diagnosis where its time allows: how long it takes, and the command that it is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from math import ceil

from ddpbench.machine.variables import EnvVar
from ddpbench.record.flags import flag_fields, to_argv
from ddpbench.record.record import Job
from ddpbench.record.request import AbOptions, OutputOptions
from ddpbench.record.script_diff import ScriptDiff

NUM_LAUNCHES = 4  # two of each side
LAUNCH_S, MIN_LAUNCH_S = 20.0, 8.0
"""Seconds that each of them trains; with less there is no proof."""

MIN_STEPS = 40
END_S = 3.0
"""From the last step of a launch to the start of the next one."""


def proof_time_s(start_s: float) -> float:
    """Seconds that a proof takes, of a script that makes its first optimizer step ``start_s`` after its start."""
    return NUM_LAUNCHES * (start_s + LAUNCH_S + END_S)


def steps_in(left_s: float, start_s: float, step_s: float) -> int | None:
    """Batches of each launch, so that all take at most ``left_s``; None if these would be too few."""
    launch_s = min(LAUNCH_S, left_s / NUM_LAUNCHES - start_s - END_S)
    steps = ceil(launch_s / step_s)
    return steps if launch_s >= MIN_LAUNCH_S and steps >= MIN_STEPS else None


def diff_to_prove(job: Job) -> ScriptDiff | None:
    """The diff of ``job`` if its proof follows."""
    diff = job.diagnosis.diff if job.diagnosis else None
    return diff if diff and diff.proof and diff.proof_steps else None


def proof_command(diff: ScriptDiff, output: OutputOptions) -> list[str]:
    """The words of the proof of ``diff``, whose records and lines are as in ``output``."""
    shown = OutputOptions(output_dir=output.output_dir, quiet=output.quiet, verbose=output.verbose)
    flags = [*to_argv(AbOptions(steps=diff.proof_steps or MIN_STEPS), flag_fields(AbOptions)), *to_argv(shown, flag_fields(OutputOptions))]
    return [sys.executable, "-m", "ddpbench", "ab", *flags, *shlex.split(diff.proof)[2:]]


def proof_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of that command, of the diagnosis's own ones."""
    own = {name: value for name, value in environment.items() if name != EnvVar.DDPBENCH_SCRATCH}
    return {**own, EnvVar.DDPBENCH_FOLLOWS: "1"}


def proof_line(diff: ScriptDiff) -> str:
    """What is printed before it begins."""
    return f"ddpbench: proving the change: {NUM_LAUNCHES} launches of {diff.proof_steps} batches each"
