"""Other loaders on the same files: what they give and cost is measured with nobody training, and not assumed.

Of one that decodes on the device that tells little: what it takes from the training is measured beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from ddpbench.analysis.remedies.rules import NEARLY_ALL
from ddpbench.analysis.summary import summarise
from ddpbench.analysis.whatif.measured import kept_up, spans_of
from ddpbench.bench.arm import Arm
from ddpbench.bench.diagnose.scene import ENTERING_S, Experiment, Scene
from ddpbench.bench.loader_bench import loader_alone
from ddpbench.bench.round_plan import Brief
from ddpbench.bench.terms import Terms
from ddpbench.bench.together import on_every_rank, opened_by_all
from ddpbench.data.preflight import check
from ddpbench.distributed.world import World
from ddpbench.record.diagnosis import BESIDE, Candidate
from ddpbench.record.errors import ArmOver
from ddpbench.record.loaders import spec_of
from ddpbench.record.record import Round
from ddpbench.record.resolved import Settled
from ddpbench.workloads import registry as workloads

OTHERS: Mapping[tuple[str, str], Sequence[Mapping[str, object]]] = {
    ("torch", "imagenet"): ({"loader": "torch-uint8"}, {"loader": "dali-cpu"}, {"loader": "dali-gpu"}),
    ("torch-uint8", "imagenet"): ({"loader": "dali-cpu"}, {"loader": "dali-gpu"}),
    ("dali-cpu", "imagenet"): ({"loader": "torch-uint8"}, {"loader": "dali-gpu"}),
    ("dali-gpu", "imagenet"): ({"hw_decoder_load": NEARLY_ALL}, {"loader": "dali-cpu"}),
    ("torch", "cifar10"): ({"loader": "tensor"},),
    ("torch-uint8", "cifar10"): ({"loader": "tensor"},),
    ("torch", "mnist"): ({"loader": "tensor"},),
}
"""By loader and data set, the fields in which they differ."""

MOST_FILLED = 0.7
"""The share of a device's memory that a training may take, for a loader that decodes there to find room beside it."""


def other_loaders(config: Settled, world: World) -> list[Settled]:
    """Those that could feed every rank, on all of them alike: nodes may differ in what is installed, and in how much memory is free."""
    found, spec = [], workloads.find(config.workload)
    for fields in OTHERS.get((config.loader, spec.dataset), ()):
        other = msgspec.structs.replace(config, **{"hw_decoder_load": None, **fields})  # what was given is for the present one
        if other == config:
            continue
        with suppress(ArmOver):  # not installed, or not for these files
            on_every_rank(world, partial(check, other, spec.dataset, spec.classes, world.size))
            found.append(other)
    return found


def measure_candidates(scene: Scene) -> list[Candidate]:
    """Each with as many workers as the present one, on all ranks at once. One that does not work here is told, and left out."""
    found, filled = [], _filled(scene)
    for config in scene.others:
        if spec_of(config.loader).gpu and filled > MOST_FILLED:
            scene.ground.progress.stage(f"{config.loader} is not measured: the training fills {filled:.0%} of the device's memory")
            continue
        try:
            found.append(_measured(scene, config))
        except ArmOver as problem:
            scene.ground.progress.stage(f"{config.loader} does not work here: {problem.message}")
    return found


def _filled(scene: Scene) -> float:
    """The share of the device's memory that the training took, where it is told."""
    records = scene.ground.journal.job.records if scene.ground.journal else []
    seen = [(summary.peak_bytes, summary.total_bytes) for summary in map(summarise, records)]
    return scene.ground.world.most(max((peak / total for peak, total in seen if peak and total), default=0.0))


def _measured(scene: Scene, config: Settled) -> Candidate:
    world = scene.ground.world
    alone = on_every_rank(world, partial(loader_alone, scene.openers.elsewhere(config), world, scene.window_s / 2))
    beside = round_beside(scene, config) if spec_of(config.loader).gpu else None
    return Candidate(
        loader=config.loader,
        workers=config.workers,
        hw_decoder_load=config.hw_decoder_load,
        alone=world.gather(alone),
        step_ms=[1000 * span for span in spans_of(beside)] if beside else [],
        kept_up=kept_up([beside]) if beside else None,
    )


def round_beside(scene: Scene, config: Settled) -> Round | None:
    """Training on batches that lie on the device while that loader works, on rank 0; None on the others.

    Raises ArmOver, on every rank, where there is no room for both on one of them.
    """
    ground, opener = scene.ground, opened_by_all(scene.openers.of(BESIDE), scene.ground.world)
    brief = Brief(round_s=scene.window_s, warm_up_s=scene.window_s, on_trial=True)
    arm = Arm(config, ground.world.on(config.device), ground.pulse, Terms(opener=opener, brief=brief))
    arm.enter()
    timed = arm.round(0)
    arm.leave()
    return timed


def _none(scene: Scene) -> str:
    return "" if scene.others else f"there is no other loader here to set beside {scene.config.loader}"


def _beside_s(scene: Scene) -> float:
    return sum(ENTERING_S + 2 * scene.window_s for each in scene.others if spec_of(each.loader).gpu)


CANDIDATES = Experiment("candidates", "measuring other loaders", measure_candidates, 2.0, 4, _none, _beside_s)
