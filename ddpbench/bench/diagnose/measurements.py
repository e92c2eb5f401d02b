"""The loader with nobody training, on all ranks at once and on one alone."""

from __future__ import annotations

from functools import partial

from ddpbench.bench.diagnose.briefs import MOST_TO_FILL, batches_to_replay
from ddpbench.bench.diagnose.scene import Experiment, Scene
from ddpbench.bench.loader_bench import loader_alone
from ddpbench.bench.together import on_rank_zero
from ddpbench.data.device_loader import Delivered
from ddpbench.data.loader import Loader
from ddpbench.record.diagnosis import Alone

WINDOWS = 3
"""What a loader that is not fast is looked at for: its first batches, the others until it runs evenly, and then."""


def measure_on_all_ranks(scene: Scene) -> list[Alone]:
    """One a rank. Notes how long a batch takes on the slowest, and keeps those to replay while the workers run anyway."""
    world = scene.ground.world

    def keep(loader: Loader, alone: Alone) -> None:
        scene.batch_s = world.most(alone.seconds / len(alone.intervals_ms))
        if not isinstance(loader, Delivered):
            return
        scene.batch_bytes = loader.batch_bytes
        if batches := batches_to_replay(scene):
            scene.openers.keep(loader.host, world.device.torch, batches)

    return world.gather(loader_alone(scene.openers.elsewhere(scene.config), world, scene.window_s, keep))


def measure_on_one_rank(scene: Scene) -> Alone | None:
    """Rank 0's, with the others idle: it gives more than with all at once where they take from each other."""
    world, config = scene.ground.world, scene.openers.elsewhere(scene.config)
    return on_rank_zero(world, partial(loader_alone, config, world, scene.window_s))


def _has_others(scene: Scene) -> bool:
    return scene.ground.world.size > 1


ON_ALL_RANKS = Experiment("alone", "measuring the loader alone", measure_on_all_ranks, 1.0, WINDOWS + MOST_TO_FILL)
ON_ONE_RANK = Experiment("alone_single", "measuring the loader on one rank alone", measure_on_one_rank, 1.0, WINDOWS, is_needed=_has_others)
