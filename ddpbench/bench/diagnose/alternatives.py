"""Benchmarks other loaders on the same files without training, so that their throughput and cost are measured, not assumed.

A loader that decodes on the GPU also runs in the background of a training, to measure what it takes from the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import msgspec

from ddpbench.analysis.remedies.loader_rules import MAX_HW_DECODER_LOAD
from ddpbench.analysis.summary import summarize
from ddpbench.analysis.whatif.measured import delivery_ratio, round_step_times_s
from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.diagnose.context import ACTIVATION_S, DiagnosisContext, DiagnosisExperiment
from ddpbench.bench.loader_bench import benchmark_loader
from ddpbench.bench.round_plan import RoundPlan
from ddpbench.data.loaders.open import open_on_all_ranks
from ddpbench.data.preflight import check_loader
from ddpbench.distributed.collectives import run_on_all_ranks
from ddpbench.distributed.world import World
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.diagnosis import AlternativeLoader
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.loaders import alternative_loaders, loader_spec
from ddpbench.record.record import Round
from ddpbench.record.roles import LOADER_IN_BACKGROUND, SkipReason
from ddpbench.workloads import registry as workloads

MAX_TRAINING_MEMORY_FRACTION = 0.7
"""Maximum share of the device's memory that a training may use for a loader that decodes there to fit as well."""


def alternative_configs(config: ResolvedConfig, world: World) -> list[ResolvedConfig]:
    """Alternatives that work on every rank; nodes may differ in installed packages and free memory."""
    working, spec = [], workloads.find_workload(config.workload)
    for alternative in _candidates(config, spec.dataset):
        with suppress(ConfigFailed):  # not installed, or not for these files
            run_on_all_ranks(world, partial(check_loader, alternative, spec.dataset, spec.classes, world.size))
            working.append(alternative)
    return working


def _candidates(config: ResolvedConfig, dataset: str) -> Iterator[ResolvedConfig]:
    """``config`` with the highest load of the hardware decoder, if its loader has one; then with each alternative loader."""
    if loader_spec(config.loader).needs_gpu and config.hw_decoder_load != MAX_HW_DECODER_LOAD:
        yield msgspec.structs.replace(config, hw_decoder_load=MAX_HW_DECODER_LOAD)
    for other in alternative_loaders(config.loader, dataset):
        yield msgspec.structs.replace(config, loader=other.name, hw_decoder_load=None)  # the user's value is for the present loader


def measure_alternative_loaders(context: DiagnosisContext) -> list[AlternativeLoader]:
    """Benchmark each alternative with the present worker count, on all ranks at once; reports and skips those that fail."""
    measured, used = [], _memory_fraction(context)
    for config in context.alternatives:
        if loader_spec(config.loader).needs_gpu and used > MAX_TRAINING_MEMORY_FRACTION:
            context.job_context.progress.stage(f"loader {config.loader} skipped: the training uses {used:.0%} of device memory")
            continue
        try:
            measured.append(_measure_alternative(context, config))
        except ConfigFailed as problem:
            context.job_context.progress.stage(f"loader {config.loader} failed: {problem.message}")
    return measured


def _memory_fraction(context: DiagnosisContext) -> float:
    """Share of device memory that the training used, maximum over ranks; 0 if unknown."""
    records = context.job_context.journal.job.records if context.job_context.journal else []
    memory_use = [(summary.peak_allocated_bytes, summary.device_total_bytes) for summary in map(summarize, records)]
    return context.job_context.world.all_max(max((peak / total for peak, total in memory_use if peak and total), default=0.0))


def _measure_alternative(context: DiagnosisContext, config: ResolvedConfig) -> AlternativeLoader:
    world = context.job_context.world
    benchmark = run_on_all_ranks(
        world, partial(benchmark_loader, context.loader_factories.with_new_file_order(config), world, context.window_s / 2)
    )
    background_round = round_with_background_loader(context, config) if loader_spec(config.loader).needs_gpu else None
    return AlternativeLoader(
        loader=config.loader,
        workers=config.workers,
        hw_decoder_load=config.hw_decoder_load,
        loader_benchmarks=world.gather(benchmark),
        background_step_ms=[1000 * step_s for step_s in round_step_times_s(background_round)] if background_round else [],
        delivery_ratio=delivery_ratio([background_round]) if background_round else None,
    )


def round_with_background_loader(context: DiagnosisContext, config: ResolvedConfig) -> Round | None:
    """Train on synthetic batches while that loader works in the background; the Round on rank 0, None on the others.

    Raises ConfigFailed on every rank if one of them has no room for both.
    """
    job_context, loader_factory = (
        context.job_context,
        open_on_all_ranks(context.loader_factories.for_role(LOADER_IN_BACKGROUND), context.job_context.world),
    )
    round_plan = RoundPlan(round_s=context.window_s, warmup_s=context.window_s, dry_run=True)
    arm = Arm(
        config,
        job_context.world.for_device(config.device),
        job_context.marker,
        ArmOptions(loader_factory=loader_factory, round_plan=round_plan),
    )
    arm.activate()
    measured = arm.run_round(0)
    arm.park()
    return measured


def _why_no_alternatives(context: DiagnosisContext) -> SkipReason | None:
    return None if context.alternatives else "no_other_loader"


def _background_rounds_s(context: DiagnosisContext) -> float:
    return sum(ACTIVATION_S + 2 * context.window_s for alternative in context.alternatives if loader_spec(alternative.loader).needs_gpu)


ALTERNATIVE_LOADERS = DiagnosisExperiment(
    "alternative_loaders", "benchmarking other loaders", measure_alternative_loaders, 2.0, 4, _why_no_alternatives, _background_rounds_s
)
