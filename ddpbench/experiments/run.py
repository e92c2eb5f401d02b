"""The main job: one training an arm, as fast as it goes, and a look inside its step."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.experiments.arms import Arm, enter_alone
from ddpbench.experiments.job import Recipe, carry_out
from ddpbench.experiments.journal import Journal, new_journal
from ddpbench.record.progress import Progress
from ddpbench.record.record import LaunchGap
from ddpbench.record.request import Request
from ddpbench.report.terminal import render


def run(request: Request) -> int:
    """Trains every arm of the request on this rank, or starts the ranks that it asks for; returns the exit code."""
    return carry_out(request, Recipe(new_journal, render, look_inside))


def look_inside(arms: Sequence[Arm], journal: Journal | None, progress: Progress) -> None:
    """The profiler's window of each arm, one arm on the device at a time; of several only where its trace is wanted."""
    if len(arms) > 1 and not arms[0].config.profile:
        return
    for index, arm in enumerate(arms):
        if not arm.can_look_inside:
            continue
        progress.stage("looking inside a step")
        enter_alone(arm, arms)
        kernels = arm.look_inside()
        if journal and kernels and (rounds := journal.job.records[index].rounds):
            last = rounds[-1]
            journal.job.records[index].launch_gap = LaunchGap(step_ms=1e3 * last.wall_s / last.traces[0].steps, kernel_ms=kernels)
