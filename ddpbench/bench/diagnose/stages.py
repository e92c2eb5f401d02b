"""The stages of a loader that does not tell them: its pipeline built up stage by stage, and differenced."""

from __future__ import annotations

from functools import partial

from ddpbench.bench.diagnose.scene import DiagnosisContext, DiagnosisExperiment
from ddpbench.bench.together import run_on_rank_zero
from ddpbench.record.loaders import loader_spec


def measure_loader_stages(context: DiagnosisContext) -> dict[str, float] | None:
    """CPU seconds an image by stage, on rank 0 while the others wait."""
    from ddpbench.data.loaders.dali.stage_costs import measure_stage_cpu_s  # DALI, which few have

    world = context.job_context.world
    return run_on_rank_zero(world, partial(measure_stage_cpu_s, context.config, world.device.torch_device))


def _is_threaded(context: DiagnosisContext) -> bool:
    """Workers tell of their stages while they work."""
    return loader_spec(context.config.loader).uses_threads


LOADER_STAGES = DiagnosisExperiment("stage_cpu_s", "measuring the stages of the loader", measure_loader_stages, 8.0, is_needed=_is_threaded)
