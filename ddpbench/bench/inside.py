"""A look inside the step of an arm, when every round is over: how long its GPU ran kernels."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.arm import Arm
from ddpbench.bench.ground import JobContext
from ddpbench.bench.scheduler import load_exclusively
from ddpbench.record.record import KernelActivity


def profile_arm(context: JobContext, arms: Sequence[Arm], index: int) -> None:
    """Runs the profiler's window of one arm, where it has something to tell, and takes down what it saw."""
    arm, journal = arms[index], context.journal
    if not arm.can_profile:
        return
    context.progress.stage("looking inside a step")
    load_exclusively(arm, arms)
    kernels = arm.profile_step()
    if journal and kernels and (rounds := journal.job.records[index].rounds):
        last = rounds[-1]
        gap = KernelActivity(step_ms=1e3 * last.wall_s / last.traces[0].steps, kernel_ms=kernels)
        journal.update_arm(index, kernel_activity=gap)
