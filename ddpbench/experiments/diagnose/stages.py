"""E4 of a loader that does not tell its stages: its pipeline built up stage by stage, and differenced."""

from __future__ import annotations

from functools import partial

from ddpbench.experiments.diagnose.scene import Experiment, Scene
from ddpbench.experiments.together import on_rank_zero
from ddpbench.record.loaders import spec_of


def measure_stages(scene: Scene) -> dict[str, float] | None:
    """CPU seconds an image by stage, on rank 0 while the others wait."""
    from ddpbench.data.dali.costs import stage_costs  # DALI, which few have

    world = scene.ground.world
    return on_rank_zero(world, partial(stage_costs, scene.config, world.device.torch))


def _told_already(scene: Scene) -> str:
    return "" if spec_of(scene.config.loader).threaded else "the loader tells what its workers do"


STAGES = Experiment("stages", "measuring the stages of the loader", measure_stages, 8.0, why_not=_told_already)
