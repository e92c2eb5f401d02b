"""A look inside the step of an arm, when every round is over: how long its GPU ran kernels."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.arm import Arm
from ddpbench.bench.ground import Ground
from ddpbench.bench.scheduler import enter_alone
from ddpbench.record.record import LaunchGap


def look_inside(ground: Ground, arms: Sequence[Arm], index: int) -> None:
    """Runs the profiler's window of one arm, where it has something to tell, and takes down what it saw."""
    arm, journal = arms[index], ground.journal
    if not arm.can_look_inside:
        return
    ground.progress.stage("looking inside a step")
    enter_alone(arm, arms)
    kernels = arm.look_inside()
    if journal and kernels and (rounds := journal.job.records[index].rounds):
        last = rounds[-1]
        gap = LaunchGap(step_ms=1e3 * last.wall_s / last.traces[0].steps, kernel_ms=kernels)
        journal.learn_of_arm(index, launch_gap=gap)
