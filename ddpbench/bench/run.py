"""The ``run`` command: one training per arm, loader benchmarks, a profiled step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ddpbench.bench.arm import Arm
from ddpbench.bench.ground import JobContext
from ddpbench.bench.job_spec import JobSpec, JournalFactory
from ddpbench.bench.journal import new_journal
from ddpbench.bench.loader_bench import WINDOW_S, benchmark_loader
from ddpbench.bench.runner import run_job
from ddpbench.bench.scheduler import load_exclusively
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import KernelActivity
from ddpbench.record.request import Request
from ddpbench.report.pages.registry import PageRenderer
from ddpbench.report.pages.run import render_run


def run_training(request: Request) -> NoReturn:
    """Trains every arm of the request on this rank, and ends the process with the exit code."""
    run_job(request, RunJobSpec(new_journal, render_run, "loader" in request.swept))


class RunJobSpec(JobSpec):
    """Each loader alone where loaders are compared, and a look inside a step."""

    def __init__(self, open_journal: JournalFactory, render: PageRenderer, compares_loaders: bool) -> None:
        super().__init__(open_journal, render)
        self._compares_loaders = compares_loaders

    def before_rounds(self, context: JobContext) -> None:
        if self._compares_loaders:
            benchmark_loaders(context)

    def after_rounds(self, context: JobContext, arms: Sequence[Arm]) -> None:
        profile_arms(context, arms)


def benchmark_loaders(context: JobContext) -> None:
    """What each loader gives with nobody training, and what it costs, beside which the trainings are read."""
    for index, config in enumerate(context.configs):
        if config.loader == SYNTHETIC:
            continue
        context.enter_phase("measuring a loader alone", f"measuring the loader {config.loader} alone")
        told = context.world.gather(benchmark_loader(config, context.world, WINDOW_S))
        if context.journal:
            context.journal.update_arm(index, loader_benchmarks=told)


def profile_arms(context: JobContext, arms: Sequence[Arm]) -> None:
    """The profiler's window of each arm, one arm on the device at a time; of several only where its trace is wanted."""
    if len(arms) == 1 or arms[0].config.profile:
        for index in range(len(arms)):
            profile_arm(context, arms, index)


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
