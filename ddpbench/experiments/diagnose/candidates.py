"""Other loaders on the same files, with nobody training: what they cost is measured, and not assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ddpbench.data.open import check
from ddpbench.experiments.alone import loader_alone, of_all_ranks
from ddpbench.experiments.diagnose.scene import Experiment, Scene
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Candidate
from ddpbench.record.errors import BenchError
from ddpbench.workloads import catalogue as workloads

OTHERS: Mapping[tuple[str, str], Sequence[str]] = {
    ("torch", "imagenet"): ("torch-uint8", "dali-cpu"),
    ("torch-uint8", "imagenet"): ("dali-cpu",),
    ("dali-cpu", "imagenet"): ("torch-uint8",),
    ("torch", "cifar10"): ("tensor",),
    ("torch-uint8", "cifar10"): ("tensor",),
    ("torch", "mnist"): ("tensor",),
}
"""By loader and data set. One that decodes on the GPU tells nothing alone: what it takes from the training is the question."""


def measure_candidates(scene: Scene) -> list[Candidate]:
    """Each with as many workers as the present one, on all ranks at once."""
    world, found = scene.ground.world, []
    for config in _others(scene):
        alone = of_all_ranks(loader_alone(scene.openers.elsewhere(config), world, scene.window_s / 2), world)
        found.append(Candidate(loader=config.loader or "", workers=config.workers or 0, alone=alone))
    return found


def _others(scene: Scene) -> list[Config]:
    config, spec = scene.config, workloads.find(scene.config.workload)
    there = []
    for loader in OTHERS.get((config.loader or "", spec.dataset), ()):
        other = msgspec.structs.replace(config, loader=loader)
        try:
            check(other, spec.dataset, spec.classes, scene.ground.world.size)
        except BenchError:
            continue  # not installed, or not for these files
        there.append(other)
    return there


def _none(scene: Scene) -> str:
    return "" if _others(scene) else f"there is no other loader here to set beside {scene.config.loader}"


CANDIDATES = Experiment("candidates", "measuring other loaders alone", measure_candidates, 2.0, 4, _none)
