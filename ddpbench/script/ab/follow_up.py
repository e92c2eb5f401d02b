"""The proof that follows a diagnosis where its time allows: how long it takes, and the command that it is."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from math import ceil

from ddpbench.machine.streams import print_error, print_note
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import BenchError, ExitCode
from ddpbench.record.flags import flag_fields, to_argv
from ddpbench.record.record import Job
from ddpbench.record.request import AbOptions, OutputOptions
from ddpbench.record.script_diff import ProofPlan, ScriptDiff

NUM_LAUNCHES = 4  # two of each side
LAUNCH_S, MIN_LAUNCH_S = 20.0, 8.0
"""Seconds that each of them trains; with less there is no proof."""

MIN_STEPS = 40
END_S = 3.0
"""From the last step of a launch to the start of the next one."""

MAX_LENGTH = 2.0
"""How many times as long as planned a proof that follows may take: epochs may end in it, with a validation."""


def launches_s(start_s: float, training_s: float = LAUNCH_S) -> float:
    """Seconds that a proof takes whose launches train for ``training_s``, each from ``start_s`` after its start."""
    return NUM_LAUNCHES * (start_s + training_s + END_S)


def plan_proof(left_s: float, start_s: float, step_s: float) -> ProofPlan | None:
    """A proof that takes at most ``left_s``, of steps of about ``step_s``; None if its launches would be too short."""
    launch_s = min(LAUNCH_S, left_s / NUM_LAUNCHES - start_s - END_S)
    steps = ceil(launch_s / step_s)
    if launch_s < MIN_LAUNCH_S or steps < MIN_STEPS:
        return None
    return ProofPlan(steps=steps, seconds=launches_s(start_s, launch_s))


def to_prove(job: Job) -> tuple[ScriptDiff, ProofPlan] | None:
    """The diff of ``job`` and the plan of its proof, if one follows."""
    diff = job.diagnosis.diff if job.diagnosis else None
    return (diff, diff.plan) if diff and diff.proof and diff.plan else None


def proof_flags(diff: ScriptDiff, ranks: int | None) -> list[str]:
    """The flags of ``ab`` that prove ``diff``, whose file is known, with so many ranks; without a launcher if that is None."""
    options = AbOptions(diff=diff.file, compute_only=diff.compute_only)
    return [*to_argv(OutputOptions(gpus=ranks), flag_fields(OutputOptions)), *to_argv(options, flag_fields(AbOptions))]


def proof_command(diff: ScriptDiff, plan: ProofPlan, program: Sequence[str], output: OutputOptions, ranks: int | None) -> list[str]:
    """The words of the proof that follows, of the script and its arguments ``program``. Records and lines are as in ``output``."""
    shown = OutputOptions(output_dir=output.output_dir, quiet=output.quiet, verbose=output.verbose)
    steps = to_argv(AbOptions(steps=plan.steps), flag_fields(AbOptions))
    flags = [*steps, *to_argv(shown, flag_fields(OutputOptions)), *proof_flags(diff, ranks)]
    return [sys.executable, "-m", "ddpbench", "ab", *flags, *program]


def proof_environment(environment: Mapping[str, str], plan: ProofPlan) -> dict[str, str]:
    """The variables of that command, of the diagnosis's own ones."""
    own = {name: value for name, value in environment.items() if name != EnvVar.DDPBENCH_SCRATCH}
    return {**own, EnvVar.DDPBENCH_FOLLOWS: f"{MAX_LENGTH * plan.seconds:.0f}"}


def proof_line(plan: ProofPlan) -> str:
    """What is printed before it begins."""
    return f"ddpbench: proving the change: {NUM_LAUNCHES} launches of {plan.steps} batches each, about {plan.seconds:.0f} s"


def after_diagnosis(measure: Callable[[], int], limit_s: float) -> int:
    """Call ``measure``, which launches, for at most ``limit_s``; returns the exit code of the diagnosis, which stands, or of a signal."""
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        os.kill(os.getpid(), signal.SIGTERM)  # the launch ends as by a user's

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        code = measure()
    except BenchError as error:
        print_error(error)
        code = ExitCode.FAILED
    timer.cancel()
    if is_over.is_set():
        print_note(f"the proof has not ended within {limit_s:.0f} s: start it by its command, which has no limit")
    is_users = code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED) and not is_over.is_set()
    return code if is_users else ExitCode.OK
