"""The stages of a loader that does not tell them: its pipeline built up stage by stage, and differenced."""

from __future__ import annotations

from functools import partial

from ddpbench.bench.diagnose.scene import Experiment, Scene
from ddpbench.bench.together import on_rank_zero
from ddpbench.record.loaders import spec_of


def measure_stages(scene: Scene) -> dict[str, float] | None:
    """CPU seconds an image by stage, on rank 0 while the others wait."""
    from ddpbench.data.loaders.dali.stage_costs import stage_costs  # DALI, which few have

    world = scene.ground.world
    return on_rank_zero(world, partial(stage_costs, scene.config, world.device.torch))


def _untold(scene: Scene) -> bool:
    """Workers tell of their stages while they work."""
    return spec_of(scene.config.loader).threaded


STAGES = Experiment("stages", "measuring the stages of the loader", measure_stages, 8.0, is_needed=_untold)
