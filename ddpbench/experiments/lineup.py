"""The arms of a job, each on its own terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ddpbench.experiments.allowance import Allowance
from ddpbench.experiments.arms import Arm
from ddpbench.experiments.brief import Brief
from ddpbench.experiments.earlier import Earlier
from ddpbench.experiments.ground import Ground
from ddpbench.experiments.legs import LegHooks, Legs
from ddpbench.experiments.recipe import Recipe
from ddpbench.experiments.shelf import Shelf
from ddpbench.experiments.telling import labels_of, named
from ddpbench.experiments.terms import Terms
from ddpbench.machine.world import World
from ddpbench.record.request import Request


def line_up(
    request: Request, recipe: Recipe, ground: Ground, earlier: Sequence[Earlier], briefs: Sequence[Brief | None], allowance: Allowance
) -> list[Arm]:
    """Every arm of the request, in its order."""
    shelf, arms = shelf_of(ground.world), list[Arm]()
    for index, (config, label) in enumerate(zip(ground.configs, labels_of(request), strict=True)):
        terms = Terms(
            arms=request.cells,
            index=index,
            earlier=earlier[index],
            opener=recipe.opener(label),
            brief=briefs[index],
            beside=recipe.beside(label),
            legs=legs_of(request, ground, shelf, allowance, index) if recipe.continued else None,
            trace_file=trace_file(request, ground.world, index),
        )
        world = recipe.among(label, ground.world.on(config.device))
        arms.append(recipe.arm(label, config, world, ground.pulse, terms))
    return arms


def shelf_of(world: World) -> Shelf:
    """Where this rank lays its trainings down."""
    return Shelf(Path(world.board.read("record") or ""), world.board.read("job") or "", world.rank)


def legs_of(request: Request, ground: Ground, shelf: Shelf, allowance: Allowance, index: int) -> Legs | None:
    """What the rounds of that arm are measured in, where each is a training of many epochs that ``shelf`` keeps on the way."""
    config = ground.configs[index]
    if not (config.fresh and config.epochs):
        return None
    hooks = LegHooks(
        in_time=partial(allowance.has_time_for, index),
        ended=partial(allowance.pace.leg_ended, index),
        tell=lambda text: ground.progress.stage(named(request, ground.configs, index, text)),
    )
    return Legs(index, config.epochs, shelf, ground.world.on(config.device), ground.pulse, hooks)


def trace_file(request: Request, world: World, index: int) -> Path | None:
    """Where this rank keeps the profiler's trace of one arm, beside the record; ``None`` without ``--profile``."""
    if not request.arms[0].profile:
        return None
    record = Path(world.board.read("record") or "")
    arm = f"-arm{index}" if request.swept else ""
    return record.with_name(f"{record.stem}{arm}-rank{world.rank}.trace.json")
