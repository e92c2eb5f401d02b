"""The ``run`` command: one training per arm, loader benchmarks, a profiled step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ddpbench.bench.arm import ROOFLINE, Arm
from ddpbench.bench.job_spec import JobContext, JobSpec, JournalFactory
from ddpbench.bench.journal import new_journal
from ddpbench.bench.loader_bench import WINDOW_S, benchmark_loader
from ddpbench.bench.runner import run_job
from ddpbench.bench.scheduler import load_exclusively
from ddpbench.machine.backends import set_num_threads
from ddpbench.machine.peaks import measure_limits
from ddpbench.machine.streams import print_note
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import KernelActivity
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.request import Request
from ddpbench.record.roofline import DeviceLimits, Roofline


def run_training(request: Request) -> NoReturn:
    """Train every arm of the request on this rank, then exit the process with the exit code."""
    run_job(request, RunJobSpec(new_journal, "loader" in request.swept))


class RunJobSpec(JobSpec):
    """Benchmarks each loader if the request compares loaders, and profiles a step, layer by layer on request."""

    def __init__(self, open_journal: JournalFactory, compares_loaders: bool) -> None:
        super().__init__(open_journal)
        self._compares_loaders = compares_loaders
        self._limits: Sequence[DeviceLimits] = ()  # of each arm; empty without --roofline

    def before_rounds(self, context: JobContext) -> None:
        if context.configs[0].roofline:
            self._limits = measure_device_limits(context)
        if self._compares_loaders:
            benchmark_loaders(context)

    def after_rounds(self, context: JobContext, arms: Sequence[Arm]) -> None:
        profile_arms(context, arms)
        if self._limits:
            measure_rooflines(context, arms, self._limits)


def benchmark_loaders(context: JobContext) -> None:
    """Benchmark each arm's loader without training: throughput and cost, as a reference for the trainings."""
    for index, config in enumerate(context.configs):
        if config.loader == SYNTHETIC:
            continue
        context.enter_phase("benchmarking a loader", f"benchmarking loader {config.loader}")
        benchmarks = context.world.gather(benchmark_loader(config, context.world, WINDOW_S))
        if context.journal:
            context.journal.update_arm(index, loader_benchmarks=benchmarks)


def profile_arms(context: JobContext, arms: Sequence[Arm]) -> None:
    """Profile each arm, one at a time on the device; of several arms only if the user asked for traces."""
    if len(arms) == 1 or arms[0].config.profile:
        for index in range(len(arms)):
            profile_arm(context, arms, index)


def profile_arm(context: JobContext, arms: Sequence[Arm], index: int) -> None:
    """Profile one arm, if its profiler has something to measure, and record the kernel time."""
    arm, journal = arms[index], context.journal
    if not arm.can_profile:
        return
    context.progress.stage("profiling a step")
    load_exclusively(arm, arms)
    kernel_ms = arm.profile_step()
    if journal and kernel_ms and (rounds := journal.job.records[index].rounds):
        last_round = rounds[-1]
        activity = KernelActivity(step_ms=1e3 * last_round.wall_s / last_round.traces[0].steps, kernel_ms=kernel_ms)
        journal.update_arm(index, kernel_activity=activity)


def measure_device_limits(context: JobContext) -> list[DeviceLimits]:
    """Limits of the device of each arm on this rank. Before any arm: they need its memory, and launches without a profiler."""
    context.enter_phase(ROOFLINE, "measuring the limits of the device")
    set_num_threads(context.configs[0].threads)
    settings = [(config.device, PRECISIONS[config.precision].compute_dtype) for config in context.configs]
    limits: dict[tuple[str, str], DeviceLimits] = {}
    for device_type, dtype in dict.fromkeys(settings):
        device = context.world.for_device(device_type).device
        limits[device_type, dtype] = measure_limits(device, dtype)
        device.empty_cache()
    return [limits[each] for each in settings]


def measure_rooflines(context: JobContext, arms: Sequence[Arm], limits: Sequence[DeviceLimits]) -> None:
    """Measure the roofline of each arm that has run, one at a time on the device. The record has that of rank 0."""
    for index, (arm, limits_of_arm) in enumerate(zip(arms, limits, strict=True)):
        if arm.is_finished or arm.warmup is None:
            continue
        context.progress.stage(ROOFLINE)
        load_exclusively(arm, arms)
        layers = arm.measure_layers()
        if context.journal and layers:
            context.journal.update_arm(index, roofline=Roofline(layers=layers, limits=limits_of_arm))
        elif context.journal:
            print_note("no roofline: torch.profiler saw no kernels")
